"""A run: one launch while it executes, with its grid, the findings of its sanitizers, and the memory of the process."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.access_checks import Finding, FindingKind
from fuzz_attn.simulator.codegen.program import Masks, Plan, Program
from fuzz_attn.simulator.order import DEFAULT_WARPS, StoreOrder
from fuzz_attn.simulator.runtime.elementwise import Undefined
from fuzz_attn.simulator.runtime.hints import times, unequal
from fuzz_attn.simulator.runtime.memory import Memory
from fuzz_attn.simulator.runtime.ranges import HIGH, LOW, Range, Taint
from fuzz_attn.simulator.torch_compat import modes_disabled

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Numbers of `mallopt`'s options in glibc."""

_KEPT_BYTES: Final = 64 * 2**20
_LARGE_BYTES: Final = 16 * 2**20


@functools.lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Let this process keep up to 64 MiB of what it frees; return whether its C library can.

    A launch makes hundreds of arrays that live for microseconds. Without this, glibc may return their pages to the
    system and get new ones, zeroed, with a page fault each. This can cost more than all of the arithmetic: a warm
    launch of 5 sequences with 16 heads of 128 (the last case of tests/benchmarks/bench_simulator.py) has 3944 page
    faults and takes 24.8 ms of CPU instead of 12.9. The small cases of a campaign have 8 to 64 faults each instead of
    3. Arrays of 16 MiB and more are returned at once.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_BYTES: Final = 2**18


def with_room(
    function: Callable[_Arguments, _Result], *arguments: _Arguments.args, **keywords: _Arguments.kwargs
) -> _Result:
    """Return the result of a call whose Python frames share one piece of `_BYTES` of the stack.

    CPython takes its stack from the system in pieces of 16 kB and returns each as soon as it is empty. Triton's front
    end walks a syntax tree by a deep recursion. It leaves and enters a piece again and again, with page faults each
    time. A piece is at least as large as the frame that it is made for, so a function that declares a large frame
    makes room for all that it calls.

    Without this, the first launch of the unified kernel (2nd case of tests/benchmarks/bench_simulator.py) takes 1.10
    times the CPU time, with 813 page faults instead of 63. How much it is depends on the depth of the call: of a whole
    case of a cold campaign it saves up to 10 % (tests/benchmarks/trees/compare.py --cold against a tree without it).
    """
    return function(*arguments, **keywords)


with_room.__code__ = with_room.__code__.replace(co_stacksize=_BYTES // 8)


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector until the context is left; leave it as it is where it does not run.

    Triton's front end makes tens of thousands of objects for a kernel, which the collector would look at many times.
    Without this a program takes 1.08 times the time (30 programs each of the unified and the paged family), and more
    than half of the first minutes of a campaign goes to programs: it saves 3 to 7 % of a whole case of a cold campaign
    (measured in the same way).
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


Array = npt.NDArray[Any]

# Programs run together as long as their largest tiles have no more elements in sum, which fit the processor's caches.
_CHUNK_ELEMENTS = 1 << 19


@functools.lru_cache(maxsize=64)
def _lanes(start: int, count: int) -> Array:
    return _shared(np.arange(start, start + count))


@functools.lru_cache(maxsize=64)
def _ids(grid: tuple[int, int, int], axis: int, start: int, count: int) -> Array:
    return _shared(_ids_of(grid, axis, _lanes(start, count)))


def _ids_of(grid: tuple[int, int, int], axis: int, lanes: Array) -> Array:
    _, ny, nz = grid
    if axis == 0:
        ids = lanes if ny * nz == 1 else lanes // (ny * nz)
    elif axis == 1:
        ids = (lanes if nz == 1 else lanes // nz) % ny
    else:
        ids = lanes % nz
    return ids.astype(np.int32)


def _shared(array: Array) -> Array:
    array.flags.writeable = False
    return array


@dataclass(slots=True)
class Run:
    """What generated code is called with: it gives program ids and takes reports."""

    program: Program
    masks: Masks
    grid: tuple[int, int, int]
    findings: dict[tuple[object, ...], Finding] = field(default_factory=dict)
    id_ranges: list[Range] = field(default_factory=list)
    lanes: Array = field(default_factory=lambda: _lanes(0, 0))
    """The numbers of the programs that run together now."""
    undefined: Undefined = field(default_factory=Undefined)
    warps: int = DEFAULT_WARPS
    """The warps of each program on a GPU."""
    order: StoreOrder = field(init=False)

    def __post_init__(self) -> None:
        self.order = StoreOrder(self.grid[0] * self.grid[1] * self.grid[2], self.warps)

    def execute(self, plan: Plan, arguments: list[Any]) -> None:
        """Run all programs in the order of their numbers, in chunks that fit the processor's caches."""
        total = self.grid[0] * self.grid[1] * self.grid[2]
        self.id_ranges = [(0, extent - 1, ()) for extent in self.grid]
        chunk = 1 if self.program.sequential else max(1, _CHUNK_ELEMENTS // self.program.elements)
        # The session need not see what generated code calls of torch; each call would pass through Python.
        with np.errstate(all="ignore"), modes_disabled(), self.program.explaining():
            function = self.program.ready(self.masks)
            if plan.prepared is None or self.program.undefined:  # undefined results are noted in each launch
                assert self.program.prepare is not None
                plan.prepared = self.program.prepare(self, *plan.scalars)
            for start in range(0, total, chunk):
                self.lanes = _lanes(start, min(chunk, total - start))
                function(self, self.lanes, plan.prepared, *arguments)

    def program_ids(self, lanes: Array, axis: int) -> Array:
        """Return program ids along an axis of the grid; the last axis runs fastest, as in Triton's interpreter."""
        if lanes is self.lanes:
            return _ids(self.grid, axis, int(lanes[0]), lanes.size)
        return _ids_of(self.grid, axis, lanes)

    def position(self, program: int) -> tuple[int, int, int]:
        """Return the (x, y, z) of a program's number."""
        _, ny, nz = self.grid
        return (program // (ny * nz), program // nz % ny, program % nz)

    def argument_range(self, argument: Array) -> Range:
        """Return the range of a scalar argument: its one value."""
        value = int(argument.item())
        return (value, value, ())

    def report(
        self,
        kind: FindingKind,
        site: int,
        lanes: Array,
        row: int,
        tensor: str,
        index: int,
        bounds: tuple[int, int],
        message: str,
        count: int,
    ) -> None:
        """Record a finding, or count it with an equal one of this launch. It was seen in the program `lanes[row]`."""
        location = self.program.sites[site]
        key = (kind, location, tensor)
        known = self.findings.get(key)
        if known is not None:
            self.findings[key] = replace(known, count=known.count + count)
            return
        program = self.position(int(lanes[row]))
        self.findings[key] = Finding(kind, self.program.name, location, program, tensor, index, bounds, message, count)

    def overflow(self, memory: Memory, lanes: Array, taints: tuple[Taint, ...], mask: Array | None, rank: int) -> None:
        """Report the 32-bit overflows and false hints that reach an element which is accessed: `mask` holds there."""
        for taint in taints:
            reached = taint.rows(lanes)
            if reached.ndim < rank + 1:
                reached = reached.reshape(reached.shape + (1,) * (rank + 1 - reached.ndim))
            reached = np.broadcast_to(reached, np.broadcast_shapes(reached.shape, (lanes.size,) + (1,) * rank))
            if mask is not None:
                reached = reached & mask
            if reached.any():
                row = int(np.unravel_index(int(reached.argmax()), reached.shape)[0])
                self._report_taint(taint, lanes, row, memory.name, int(reached.sum()))

    def overflow_sum(
        self, memory: Memory, lanes: Array, site: int, mask: Array | None, rank: int, *terms: Array
    ) -> None:
        """Report as `overflow` does, for a 32-bit sum of terms that is computed only at the access."""
        ideal: Any = 0
        for term in terms:
            ideal = ideal + term.astype(np.int64)
        wrapped = np.atleast_1d((ideal < LOW) | (ideal > HIGH))
        if wrapped.any():
            self.overflow(memory, lanes, (Taint(lanes, wrapped, site),), mask, rank)

    def _report_taint(self, taint: Taint, lanes: Array, row: int, tensor: str, count: int) -> None:
        kind = FindingKind.FALSE_HINT if taint.claim else FindingKind.INTEGER_OVERFLOW
        message = f"a 32-bit integer overflows on its way into an address of {tensor}"
        if taint.claim:
            message = f"{taint.claim} used in an address of {tensor}"
        self.report(kind, taint.site, lanes, row, tensor, 0, (LOW, HIGH), message, count)

    def check_constancy(self, site: int, lanes: Array, mask: Array, sizes: tuple[int, ...]) -> None:
        """Report groups of a mask that are not equal, although a hint says so."""
        wrong = unequal(mask, sizes)
        if wrong.any():
            claim = f"tl.max_constancy promises groups of {times(sizes)} equal elements, but a mask changes within one"
            self._report_hint(site, lanes, ~wrong, claim)

    def assumed(self, site: int, lanes: Array, condition: Array) -> None:
        """Report an assumption that fails in some program."""
        if not condition.all():
            self._report_hint(site, lanes, condition, "tl.assume promises a condition that is false")

    def _report_hint(self, site: int, lanes: Array, holds: Array, message: str) -> None:
        failed = ~holds.reshape(holds.shape[0], -1).all(axis=1)
        row, kind = int(failed.argmax()), FindingKind.FALSE_HINT
        self.report(kind, site, lanes, row, "", 0, (0, 0), message, int(failed.sum()))

    def device_assert(self, site: int, lanes: Array, condition: Array, message: str) -> None:
        """Report a device assertion that fails in some program."""
        if not condition.all():
            failed = ~condition.reshape(condition.shape[0], -1).all(axis=1)
            row = int(failed.argmax())
            self.report(FindingKind.DEVICE_ASSERT, site, lanes, row, "", 0, (0, 0), message, int(failed.sum()))
