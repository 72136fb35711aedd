"""A session: the launches of one `simulate` block, their arguments, and what the sanitizers found in them.

*Probes* find whether what a launch does depends on a number that an integer operation leaves undefined. A launch that
met one is run again from the same memory with other numbers in the place of undefined results. If it stores, accesses
or reports the same, the undefined numbers do not matter: masks and selections drop them. Only programs with an
operation that may be undefined are prepared for it, with copies of what they store to.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.denormals import kept_denormals
from fuzz_attn.errors import LoweringError, SimulatorError, UnsupportedOperation
from fuzz_attn.simulator.access_checks import EmptyWatcher, Finding, FindingKind, Layout, RaceTracker, Shadows
from fuzz_attn.simulator.codegen.program import Plan, Program
from fuzz_attn.simulator.execution import Run, keep_freed_memory
from fuzz_attn.simulator.order import DEFAULT_WARPS
from fuzz_attn.simulator.runtime.elementwise import Seen
from fuzz_attn.simulator.runtime.float_formats import STORAGE
from fuzz_attn.simulator.runtime.memory import Memory
from fuzz_attn.simulator.simulator import Simulator, definition_of
from fuzz_attn.simulator.torch_compat import modes_disabled
from fuzz_attn.ttir.ir import Function, Location
from fuzz_attn.ttir.kernel_arithmetic import KernelArithmetic
from fuzz_attn.ttir.lowering import SCALAR_TYPES, TORCH_TYPES, Bound, grid_of
from fuzz_attn.ttir.triton_compat import is_gluon, launches_replaced, reinterpreted_type

_VIEWED: Final = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.int8, torch.float8_e5m2: torch.int8}
"""Types that numpy does not know, and as what it sees their elements."""
FAR_STRIDE: Final = 2**20
"""The least stride, in elements, of rows that are tracked without what lies between them."""
LIMITS: Final = {"x": 2**31 - 1, "y": 65535, "z": 65535}
"""The most programs along each axis, on NVIDIA GPUs of any age that Triton supports."""
Array = npt.NDArray[Any]

MOST_COPIED: Final = 2**26
"""Bytes of tensors that are copied for probes at most; a launch that stores to larger ones is not probed."""

_GARBAGE: Final[tuple[Callable[[int], int], ...]] = (lambda width: -1, lambda width: (2 ** (width - 1) - 1) // 3)
"""The numbers that stand for undefined results, by width: what a GPU's division by 0 gives, and a large one."""


@dataclass(slots=True)
class Session:
    """The record of one `simulate` block.

    `findings` has one finding for each defect (kind, source line and tensor), `unsupported` the operations that the
    simulator does not know, `parsed` the kernels that were rewritten, as they were before. `launches` counts those that
    were tried, and `starting` is called before each. `launching` is called before each that has a program, with the
    program, the arguments and the grid. `arithmetic` has that of each kernel.
    """

    simulator: Simulator
    findings: list[Finding] = field(default_factory=list)
    unsupported: list[UnsupportedOperation] = field(default_factory=list)
    parsed: list[Function] = field(default_factory=list, repr=False)
    launches: int = 0
    arithmetic: set[KernelArithmetic] = field(default_factory=set, repr=False)
    starting: Callable[[], None] | None = None
    launching: Callable[[Program, Bound, tuple[int, int, int]], None] | None = None
    _shadows: Shadows = field(default_factory=Shadows, repr=False)

    def watcher(self) -> EmptyWatcher:
        """Return the mode that watches `torch.empty`, to find uninitialised reads."""
        return EmptyWatcher(self._shadows)

    def forget(self, tensor: torch.Tensor) -> None:
        """Let loads of a tensor's elements be reported as reads of what nothing has written."""
        self._shadows.forget(tensor)

    def launch(self, kernel: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], grid: Any) -> None:
        """Run one launch of a decorated function. Raises UnsupportedOperation or another SimulatorError."""
        self.launches += 1
        if self.starting is not None:
            self.starting()
        try:
            with kept_denormals():
                self._launch(kernel, arguments, keywords, grid)
        except UnsupportedOperation as error:
            self.unsupported.append(error)
            raise

    def _launch(self, kernel: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], grid: Any) -> None:
        function = self.simulator.translations.translated(kernel)
        if is_gluon(function):
            raise UnsupportedOperation("Gluon, in which this kernel is written,", definition_of(function))
        bound = self.simulator.bind(function, arguments, keywords)
        extents = self.simulator.grid(function, bound, grid_of(grid, bound.values))
        try:
            program = self._program(function, bound)
        except LoweringError:
            variables = bound
            bound = self.simulator.bind(function, arguments, keywords, constant_ones=True)
            if bound.form.key == variables.form.key:
                raise
            program = self._program(function, bound)
        refused = grid_finding(program.name, definition_of(function), extents)
        if refused is None:
            require_shared_memory(program.name, program.shared, definition_of(function))
            self._run(program, bound, extents, _warps(keywords))
        else:
            self._note(refused)

    def _run(self, program: Program, bound: Bound, extents: tuple[int, int, int], warps: int) -> None:
        self.arithmetic.add(program.arithmetic)
        run = Run(program, self.simulator.masks, extents, warps=warps)
        plan = program.plan((extents, scalar_key(bound)), lambda: scalars(bound))
        passed = self._passed(bound, plan.scalars)
        memories = [memory for memory in passed if isinstance(memory, Memory)]
        stored: list[Memory] = [passed[int(name[1:])] for name in program.stored]
        watch_races(memories, stored)
        before = snapshot(stored) if program.undefined and self.launching is None else None
        if self.launching is not None:
            self.launching(program, bound, extents)
        try:
            run.execute(plan, passed)
            if before is not None and run.undefined.seen:
                for finding in probe(run, plan, passed, before):
                    self._note(finding)
        finally:
            addresses = {memory.name: memory.address for memory in memories}
            for finding in run.findings.values():
                self._note(replace(finding, address=addresses.get(finding.tensor, 0)))

    def _passed(self, bound: Bound, numbers: list[Any]) -> list[Any]:
        """Return what the program is called with: an array for each number and a memory for each tensor."""
        with modes_disabled():  # the watcher need not see the views that are made here
            return [
                memory_of(name, value, self._shadows) if number is None else number
                for (name, _), value, number in zip(bound.form.passed, bound.passed, numbers, strict=True)
            ]

    def _program(self, kernel: Any, bound: Bound) -> Program:
        rewrite = self.simulator.rewrite
        if rewrite is None:
            return self.simulator.program(kernel, bound)
        parsed, program = self.simulator.rewritten(kernel, bound, rewrite)
        self.parsed.append(parsed)
        return program

    def _note(self, finding: Finding) -> None:
        """Record a finding, or count it with an equal one of another launch."""
        for index, known in enumerate(self.findings):
            if known.signature == finding.signature:
                self.findings[index] = replace(known, count=known.count + finding.count)
                return
        self.findings.append(finding)


def _warps(keywords: dict[str, Any]) -> int:
    """Return the warps of a program that a launch asks for; 1, whose accesses are ordered, where they are not known."""
    warps = keywords.get("num_warps") or DEFAULT_WARPS
    return warps if isinstance(warps, int) and (keywords.get("num_ctas") or 1) == 1 else 1


@contextlib.contextmanager
def simulate(simulator: Simulator | None = None) -> Iterator[Session]:
    """Yield a session in which every `kernel[grid](...)` runs on the CPU, in place, on torch's CPU tensors.

    Without a simulator, a new one is used, which has to lower each kernel. Kernels may be decorated with or without
    TRITON_INTERPRET, and launched through heuristics or autotuners; the latter take their first configuration unless
    another is chosen. Blocks may be nested: the innermost one runs the launch. Nothing stays patched.
    """
    keep_freed_memory()
    session = Session(simulator or Simulator())
    with launches_replaced(session.launch), session.watcher():
        yield session


def scalar_key(bound: Bound) -> tuple[object, ...]:
    """Return the numbers of a launch; floats by their text, since 0.0 equals -0.0 and NaN does not equal itself."""
    values = [value for (_, type_), value in zip(bound.form.passed, bound.passed, strict=True) if type_[0] != "*"]
    return tuple([value if value.__class__ is int else repr(value) for value in values])


def scalars(bound: Bound) -> list[Any]:
    """Return an array for each number and None for each tensor."""
    arguments = zip(bound.form.passed, bound.passed, strict=True)
    return [None if type_[0] == "*" else _scalar(value, type_) for (_, type_), value in arguments]


def _scalar(value: Any, type_: str) -> Any:
    dtype = SCALAR_TYPES[type_]
    array = np.array([value], dtype)
    return array.view(f"i{dtype.itemsize}") if dtype.kind == "u" else array


def memory_of(name: str, value: Any, shadows: Shadows) -> Memory:
    """Return the memory of a tensor argument, with its shadow if it has one.

    Raises SimulatorError for a tensor that is not on the CPU.
    """
    tensor = value if isinstance(value, torch.Tensor) else _reinterpreted(value)
    if not tensor.is_cpu:
        raise SimulatorError(f"argument {name!r} is on {tensor.device}; the simulator runs on CPU tensors")
    layout = _layout(tensor.shape, tensor.stride())
    element = TORCH_TYPES[tensor.dtype][1]
    memory = Memory(name, _flat(tensor, layout, element), element, layout)
    memory.address = tensor.data_ptr()
    memory.shift = int(tensor.storage_offset())
    memory.storage = (tensor.untyped_storage().data_ptr(), memory.flat.itemsize)
    if shadows:
        memory.written = shadows.find(tensor)
    return memory


def watch_races(memories: list[Memory], stored: Iterable[Memory]) -> None:
    """Give a race tracker to the memories that share a storage with one of those in which the launch stores."""
    for storage in {memory.storage for memory in stored} - {None}:
        sharing = [memory for memory in memories if memory.storage == storage]
        tracker = _tracker(sharing)
        for memory in sharing:
            memory.tracker = tracker


def _tracker(sharing: list[Memory]) -> RaceTracker:
    """Return the tracker of a storage; where its tensors have rows far apart, only their rows take memory."""
    size = max(memory.shift + memory.extent for memory in sharing)
    stride = max(memory.layout.levels[0][0] if memory.layout.levels else 1 for memory in sharing)
    if stride < FAR_STRIDE:
        return RaceTracker(size)
    width = max(memory.shift % stride + (memory.extent - 1) % stride + 1 for memory in sharing)
    return RaceTracker(size, stride, width) if width < stride else RaceTracker(size)


@functools.lru_cache(maxsize=4096)
def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    return Layout(tuple(shape), tuple(strides))


def _flat(tensor: torch.Tensor, layout: Layout, element: str) -> Any:
    """Return the storage from a tensor's first element to its last one, without a copy."""
    if layout.empty:
        return np.zeros(0, STORAGE[element])
    elements = tensor.detach() if tensor.requires_grad else tensor
    if not elements.is_contiguous():
        elements = elements.as_strided((layout.extent,), (1,))
    viewed = _VIEWED.get(tensor.dtype)
    if viewed is not None:
        elements = elements.view(viewed)
    return elements.numpy().reshape(-1).view(STORAGE[element])


def _reinterpreted(wrapper: Any) -> torch.Tensor:
    """Return the tensor inside the wrapper that `triton.reinterpret` returns, viewed as its other type."""
    name = reinterpreted_type(wrapper)
    for dtype, (triton_name, _) in TORCH_TYPES.items():
        if triton_name == name:
            base: torch.Tensor = wrapper.base
            return base.view(dtype)
    raise SimulatorError(f"a tensor reinterpreted as {name} is not supported")


def grid_finding(kernel: str, location: Location, extents: tuple[int, int, int]) -> Finding | None:
    """Return the finding of a grid that is too large along some axis, at the kernel's definition; None for others."""
    for (axis, limit), extent in zip(LIMITS.items(), extents, strict=True):
        if extent > limit:
            message = f"{extent} programs along {axis}, and a GPU launches at most {limit}"
            kind, bounds = FindingKind.GRID_TOO_LARGE, (0, limit + 1)
            return Finding(kind, kernel, location, (0, 0, 0), f"grid.{axis}", extent, bounds, message)
    return None


LIMIT: Final = 227 * 1024
"""The bytes that a block may have on an H100, the device that kernels are lowered for."""


def require_shared_memory(kernel: str, needed: int, location: Location) -> None:
    """Raise :class:`LoweringError` for a kernel that cannot have the shared memory it needs at least.

    Triton raises `OutOfResources` for it at the launch. What a kernel needs at least is the largest second operand of
    a dot: all of it is there at once, whatever the layouts and the number of warps. Copies in a pipeline, other
    operands and exchanges between threads come on top and are not estimated: a GPU refuses more kernels, and none
    fewer.
    """
    if needed > LIMIT:
        reason = f"out of resource: shared memory, required: at least {needed}, hardware limit: {LIMIT}"
        raise LoweringError(
            f"{kernel} cannot be launched: {reason}",
            error="OutOfResources",
            reason=reason,
            location=f"{location.file}:{location.line}",
            stated=True,
        )


@dataclass(slots=True)
class Snapshot:
    """Copies of the memories that a launch stores to, and of what is known of their elements."""

    memories: Sequence[Memory]
    copies: list[tuple[Array, Array | None]]

    def restore(self) -> None:
        """Let the memories hold what they held."""
        for memory, (elements, written) in zip(self.memories, self.copies, strict=True):
            memory.flat[...] = elements
            if memory.written is not None and written is not None:
                memory.written[...] = written

    def differs(self) -> bool:
        """Return whether the memories now hold other bits."""
        return any(
            memory.flat.tobytes() != elements.tobytes()
            or (memory.written is not None and written is not None and not np.array_equal(memory.written, written))
            for memory, (elements, written) in zip(self.memories, self.copies, strict=True)
        )


def snapshot(memories: Sequence[Memory]) -> Snapshot | None:
    """Return copies of memories, None if they are too large."""
    if sum(memory.flat.nbytes for memory in memories) > MOST_COPIED:
        return None
    copies = [(one.flat.copy(), None if one.written is None else one.written.copy()) for one in memories]
    return Snapshot(memories, copies)


def probe(run: Run, plan: Plan, passed: list[Any], before: Snapshot) -> list[Finding]:
    """Return a finding for each line whose undefined results change what a finished run did; memory is as it was."""
    after = snapshot(before.memories)
    if after is None:
        return []
    seen = run.masks.seen.copy()
    try:
        sites = list(run.undefined.seen)
        if not _changed(run, plan, passed, before, after, sites):
            return []
        alone = [site for site in sites if _changed(run, plan, passed, before, after, [site])]
        return [_finding(run, site, run.undefined.seen[site]) for site in alone or sites[:1]]
    finally:
        after.restore()
        run.masks.seen[: len(seen)] = seen


def _changed(run: Run, plan: Plan, passed: list[Any], before: Snapshot, after: Snapshot, sites: Sequence[int]) -> bool:
    """Return whether the launch does something else with some garbage in the place of undefined results of lines."""
    for garbage in _GARBAGE:
        before.restore()
        again = Run(run.program, run.masks, run.grid, warps=run.warps)
        again.undefined.garbage = dict.fromkeys(sites, garbage)
        watch_races([one for one in passed if isinstance(one, Memory)], before.memories)
        try:
            again.execute(Plan(plan.scalars), passed)
        except Exception:  # noqa: BLE001 - such as a loop that garbage makes too long; the run had none
            return True
        if again.findings.keys() != run.findings.keys() or after.differs():
            return True
    return False


def _finding(run: Run, site: int, seen: Seen) -> Finding:
    message = f"{seen.words}: the result is undefined, and what the launch stores or accesses depends on it"
    place, program = run.program.sites[site], run.position(seen.program)
    kind = FindingKind.UNDEFINED_INTEGER
    return Finding(kind, run.program.name, place, program, "", 0, (0, 0), message, seen.count)
