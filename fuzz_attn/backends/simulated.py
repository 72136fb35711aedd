"""The simulator backend: whole-grid execution on the CPU, watched by sanitizers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fuzz_attn.backends.base import Observation, Watch
from fuzz_attn.backends.quiet import quiet
from fuzz_attn.backends.simulator import (
    Finding,
    FindingKind,
    LoopLimitError,
    Options,
    SimulatorError,
    simulate,
)
from fuzz_attn.errors import BackendError, UnsupportedByBackendError
from fuzz_attn.verdict import Kind

_KINDS: Final[dict[FindingKind, Kind]] = {
    FindingKind.OUT_OF_BOUNDS_LOAD: "out_of_bounds",
    FindingKind.OUT_OF_BOUNDS_STORE: "out_of_bounds",
    FindingKind.UNINITIALISED_READ: "uninitialised",
    FindingKind.RACE: "race",
    FindingKind.INTEGER_OVERFLOW: "overflow",
    FindingKind.DEVICE_ASSERT: "exception",
}


def cache_folder() -> Path:
    """Return where lowered programs are kept: ``FUZZ_ATTN_CACHE``, or ``fuzz_attn`` in the user's cache folder."""
    own = os.environ.get("FUZZ_ATTN_CACHE")
    general = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(own) if own else general / "fuzz_attn"


class SimulatorBackend:
    """Runs the whole grid of a launch in a few numpy calls, and reports what no output shows."""

    name = "simulator"
    device = "cpu"
    sanitizers = True

    def prepare(self) -> None:
        """Let Triton decorate kernels as for a GPU: the simulator lowers them itself."""
        os.environ.pop("TRITON_INTERPRET", None)

    def preflight(self) -> tuple[str, ...]:
        """Return no shims; raises :class:`BackendError` where the simulator computes wrongly."""
        from fuzz_attn.backends import preflight  # noqa: PLC0415 - decorates kernels, so only once prepared

        with self.running():
            found = tuple(preflight.defects(self.device))
        if found:
            raise BackendError(f"backend='simulator' computes wrongly: {', '.join(found)}")
        return ()

    @contextmanager
    def running(self) -> Iterator[Watch]:
        """Catch every launch, all sanitizers on; raise :class:`UnsupportedByBackendError` for what cannot run.

        A kernel that the front end refuses counts as such too: the interpreter tells whether the kernel is wrong, or
        only wants an integer argument of 1 made a constant, which the simulator never does.
        """
        watch = Watch()
        with quiet():
            try:
                with simulate(Options(cache_dir=cache_folder())) as session:
                    yield watch
            except LoopLimitError as error:
                watch.observations.append(Observation("timeout", str(error)))
            except SimulatorError as error:
                raise UnsupportedByBackendError(f"backend='simulator' cannot run this: {error}") from error
            finally:
                watch.observations.extend(_observed(finding) for finding in session.findings)


def _observed(finding: Finding) -> Observation:
    return Observation(_KINDS[finding.kind], str(finding))
