"""The simulator backend: whole-grid execution on the CPU, watched by sanitizers."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

from fuzz_attn.backends.backend import Kernels, Observation, Watch, quiet
from fuzz_attn.backends.kernel_coverage import OUTCOMES, Mask
from fuzz_attn.errors import BackendError, LoopLimitError, LoweringError, SimulatorError, UnsupportedByBackendError
from fuzz_attn.foreign_files import cache_folder
from fuzz_attn.oracle.verdict import Kind
from fuzz_attn.simulator.access_checks import Finding, FindingKind
from fuzz_attn.simulator.codegen.generator import Extension
from fuzz_attn.simulator.codegen.program import ALL_FALSE, ALL_TRUE, MIXED, SEVERAL, Program, Site
from fuzz_attn.simulator.session import Session, simulate
from fuzz_attn.simulator.simulator import Rewrite, Simulator
from fuzz_attn.ttir.ir import Function
from fuzz_attn.ttir.kernel_arithmetic import KernelArithmetic
from fuzz_attn.ttir.lowering import Bound

if TYPE_CHECKING:
    from fuzz_attn.simulator.recorder import Recorder
    from fuzz_attn.simulator.switches import Switches

_KINDS: Final[dict[FindingKind, Kind]] = {
    FindingKind.OUT_OF_BOUNDS_LOAD: "out_of_bounds",
    FindingKind.OUT_OF_BOUNDS_STORE: "out_of_bounds",
    FindingKind.UNINITIALISED_READ: "uninitialised",
    FindingKind.RACE: "race",
    FindingKind.INTEGER_OVERFLOW: "overflow",
    FindingKind.DEVICE_ASSERT: "exception",
    FindingKind.GRID_TOO_LARGE: "exception",
    FindingKind.CONFLICTING_STORE: "conflicting_store",
    FindingKind.UNORDERED_LOAD: "unordered_load",
    FindingKind.FALSE_HINT: "false_hint",
    FindingKind.UNDEFINED_INTEGER: "undefined_integer",
}
_OF_NO_ELEMENT: Final = frozenset({"overflow", "false_hint", "undefined_integer"})
"""Kinds whose findings name a tensor at most, and no element of it."""


class SimulatorBackend:
    """Runs the whole grid of a launch in a few numpy calls, and reports what the sanitizers find."""

    name = "simulator"
    device = "cpu"
    sanitizers = True
    tensor_core_slack = 1.0
    forks_first = False
    compiles = True

    def __init__(self) -> None:
        self._reported: list[int] = []
        self._arithmetic: set[KernelArithmetic] = set()
        self._simulator = Simulator(coverage=True, cache_dir=cache_folder())
        self._launching: Callable[[Program, Bound, tuple[int, int, int]], None] | None = None
        self.parsed: list[Function] = []
        """The kernels launched since the last call of ``rewrite``, as they were before; empty without a rewrite."""

    def prepare(self) -> None:
        """Let Triton decorate kernels as for a GPU; the simulator lowers them itself."""
        os.environ.pop("TRITON_INTERPRET", None)

    def start(self) -> None:
        """Do nothing: a CPU needs no initialisation."""

    def new_kernels(self) -> Kernels:
        """Return 0 kernels: nothing is compiled for the CPU."""
        return Kernels()

    def gpu(self) -> None:
        """Return None: kernels run on the CPU."""

    def preflight(self) -> tuple[str, ...]:
        """Return no shims; raises :class:`BackendError` if the simulator computes wrongly."""
        check_arithmetic()
        return ()

    def notes(self) -> tuple[str, ...]:
        """Return why generated programs are not kept on disk, where they are not."""
        obstacle = self._simulator.cache_obstacle
        return (f"Generated programs are not cached: {obstacle}.",) if obstacle else ()

    @contextmanager
    def running(self) -> Iterator[Watch]:
        """Run every launch in the simulator, with all sanitizers.

        Raises :class:`UnsupportedByBackendError` for a kernel that it cannot run, also where the target caught that and
        went on without the kernel. A kernel that the compiler rejects is the target's own.
        """
        watch = Watch()
        with quiet():
            try:
                with simulate(self._simulator) as session:
                    session.starting = partial(_starting, watch, session)
                    session.launching = self._launching
                    yield from self._watched(watch, session)
            except LoweringError:
                raise
            except LoopLimitError as error:
                watch.observations.append(Observation("timeout", str(error)))
            except SimulatorError as error:
                raise UnsupportedByBackendError(f"backend='simulator' cannot run this: {error}") from error
            finally:
                self.parsed = [*dict.fromkeys((*self.parsed, *session.parsed))]
                self._arithmetic |= session.arithmetic
                watch.observations.extend(_observed(finding) for finding in _causes(session.findings))

    @staticmethod
    def _watched(watch: Watch, session: Session) -> Iterator[Watch]:
        """Yield the watch; raise what the simulator does not support, whatever the target made of it."""
        try:
            yield watch
        except Exception as error:
            if session.unsupported:
                raise session.unsupported[0] from error
            raise
        finally:
            watch.launches = session.launches
        if session.unsupported:
            raise session.unsupported[0]

    @contextmanager
    def unrecorded(self, *, own: bool = True) -> Iterator[None]:
        """Run launches with programs that record no masks, and read nothing of kernels that are not the ``own``."""
        before, self._simulator.coverage = self._simulator.coverage, False
        known = self.arithmetic()
        try:
            yield
        finally:
            self._simulator.coverage = before
            if not own:
                self._arithmetic = set(known)

    @contextmanager
    def recorded(self, recorder: Recorder) -> Iterator[None]:
        """Record the values of all operations of launches, with programs of their own; they record no masks."""
        before = self._simulator, self._launching
        self._simulator, self._launching = recorder.simulator, recorder.launching
        try:
            yield
        finally:
            self._simulator, self._launching = before

    @contextmanager
    def watched(self, launching: Callable[[Program, Bound, tuple[int, int, int]], None]) -> Iterator[None]:
        """Tell each launch, with its program, its arguments and its grid."""
        before, self._launching = self._launching, launching
        try:
            yield
        finally:
            self._launching = before

    @contextmanager
    def switched(self, switches: Switches) -> Iterator[None]:
        """Run launches with programs in which each value has a switch; they record no masks."""
        before = self._simulator, self._launching, self.parsed
        self._simulator, self._launching = switches.simulator, switches.launching
        known = set(self._arithmetic)
        try:
            yield
        finally:
            self._simulator, self._launching, self.parsed = before
            self._arithmetic = known

    def extend(self, extension: Extension) -> None:
        """Start afresh with a simulator that knows the operations of an extension, which an audit adds to kernels."""
        self._reported = []
        self._simulator = Simulator(extension=extension)

    def rewrite(self, rewrite: Rewrite) -> None:
        """Change each kernel before it runs from now on, for an audit; masks are no longer recorded."""
        self._simulator.coverage = False
        self._simulator.rewrite = rewrite
        self.parsed = []

    def reaches_large_offsets(self) -> bool:
        """Return whether the machine provides so many addresses, which take no memory."""
        from fuzz_attn.inputs.storage import reaches_large_offsets  # noqa: PLC0415 - imports torch

        return reaches_large_offsets()

    def arithmetic(self) -> frozenset[KernelArithmetic]:
        """Return how each kernel launched so far rounds."""
        return frozenset(self._arithmetic)

    def announce(self, compiling: Callable[[bool], None]) -> None:
        """Do nothing: nothing is compiled for the CPU."""

    def new_masks(self) -> tuple[Mask, ...]:
        """Return the masks with new outcomes since the last call, with all of their outcomes so far."""
        masks = self._simulator.masks
        if masks.seen == self._reported:
            return ()
        reported, self._reported = self._reported, masks.seen.copy()
        before = chain(reported, repeat(-1))
        return tuple(_mask(site, bits) for (site, bits), old in zip(masks.items(), before, strict=False) if bits != old)


@cache
def check_arithmetic() -> None:
    """Raise :class:`BackendError` if the simulator computes wrongly on this machine.

    If not, forks of this process do not check it again: that took 0.03 of the 0.06 CPU seconds until a worker is ready.
    """
    from fuzz_attn.backends import preflight  # noqa: PLC0415 - decorates kernels, so only once prepared

    backend = SimulatorBackend()
    with backend.running():
        found = tuple(preflight.defects(backend.device))
    if found:
        raise BackendError(f"backend='simulator' computes wrongly: {', '.join(found)}")


def _starting(watch: Watch, session: Session) -> None:
    """Count a launch, which may not load what is dead."""
    watch.count_launch()
    if watch.dead is not None:
        session.forget(watch.dead)


def _causes(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without the wrong accesses that follow from an overflow, which is reported itself."""
    return [each for each in findings if not any(each.follows_from(other) for other in findings)]


def _observed(finding: Finding) -> Observation:
    site = str(finding.location) if finding.location.line else ""
    kind = _KINDS[finding.kind]
    return Observation(kind, str(finding), site, 0 if kind in _OF_NO_ELEMENT else finding.address, finding.index)


def _mask(site: Site, bits: int) -> Mask:
    seen = tuple(outcome for outcome, bit in zip(OUTCOMES, (ALL_TRUE, ALL_FALSE, MIXED), strict=True) if bits & bit)
    text = linecache.getline(site.file, site.line).strip()
    return Mask(site.file, site.line, site.kernel, site.kind, site.ordinal, text, bool(bits & SEVERAL), seen)
