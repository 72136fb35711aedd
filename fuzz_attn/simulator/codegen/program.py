"""A kernel ready to run: generated source with all names that it may use, and what launches of it share.

Launches share whether each mask of the kernel was all true, all false and mixed in some program.
"""

from __future__ import annotations

import hashlib
import linecache
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fuzz_attn.errors import SimulatorError, UnsupportedOperation
from fuzz_attn.simulator.codegen.source_tree import NO_ORIGIN, Origin
from fuzz_attn.simulator.runtime import elementwise, float_formats, hints, lanes, memory, ptx, ranges, tiles
from fuzz_attn.simulator.runtime.memory import select
from fuzz_attn.ttir.ir import Location, Type
from fuzz_attn.ttir.kernel_arithmetic import KernelArithmetic

Array = npt.NDArray[Any]

ALL_TRUE, ALL_FALSE, MIXED, SEVERAL = 1, 2, 4, 8
"""Outcomes of a mask, and SEVERAL if it has several elements: a single element is never mixed."""
COMPLETE_SINGLE = ALL_TRUE | ALL_FALSE
COMPLETE = COMPLETE_SINGLE | MIXED


def cover(seen: list[int], slot: int, *factors: Array) -> None:
    """Add the outcomes of a mask, one for each program (row), to its slot; skip work for outcomes already seen.

    The mask is the conjunction of factors that do not share an axis: it is all true where each factor is, and partly
    true where each factor is at least partly true.
    """
    bits, partial, false_rows, true_rows = seen[slot], [], False, True
    for factor in factors:
        count, size = int(np.count_nonzero(factor)), factor.size
        if not count:
            seen[slot] = bits | ALL_FALSE if size else bits
            return
        if count != size:
            partial.append(factor)
            width = size // factor.shape[0]
            false_rows |= size - count >= width
            true_rows &= count >= width
    if not partial:
        seen[slot] = bits | ALL_TRUE
        return
    # Many masks lack one outcome for a whole campaign. In half of their uses the counts tell that it is not here.
    lacking = ~bits & COMPLETE
    if (lacking == ALL_FALSE and not false_rows) or (lacking == ALL_TRUE and not true_rows):
        return
    varying = [factor for factor in partial if factor.shape[0] > 1]
    always_mixed = len(varying) < len(partial)  # by a factor that is the same for all programs
    if not varying:
        seen[slot] = bits | MIXED
        return
    lacks_mixed = not bits & MIXED
    every = some = None
    if not always_mixed and (lacks_mixed or not bits & ALL_TRUE):
        every = _rows(np.logical_and, varying)
        bits |= ALL_TRUE if np.count_nonzero(every) else 0
    if lacks_mixed or not bits & ALL_FALSE:
        some = _rows(np.logical_or, varying)
        bits |= 0 if np.count_nonzero(some) == some.size else ALL_FALSE
    if lacks_mixed and some is not None and (some if every is None else some != every).any():
        bits |= MIXED
    seen[slot] = bits


def _rows(reduction: np.ufunc, factors: list[Array]) -> Array:
    """Return for each row whether the reduction holds in each factor."""
    result: Array = reduction.reduce(factors[0].reshape(factors[0].shape[0], -1), axis=1)
    for factor in factors[1:]:
        result = result & reduction.reduce(factor.reshape(factor.shape[0], -1), axis=1)
    return result


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A mask or condition of a kernel: `kind` is load, store, select, branch, while or an atomic.

    `ordinal` distinguishes masks of the same kind and line by their order in the compiled kernel. A condition that is
    decided at compile time is not a mask of that compilation.
    """

    kernel: str
    file: str
    line: int
    kind: str
    ordinal: int = 0


class Masks:
    """The masks of all kernels that were run with coverage, with their outcomes in all compilations of the kernel.

    `seen` holds the bits of each mask: ALL_TRUE, ALL_FALSE, MIXED, and SEVERAL if it can be mixed. Generated code does
    not evaluate a complete mask again.
    """

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._slots: dict[Site, int] = {}

    def slots(self, kernel: str, sites: Iterable[tuple[str, Location, bool]]) -> list[int]:
        """Return the indices in `seen` of the masks of one compiled kernel."""
        ordinals: dict[tuple[str, int, str], int] = {}
        slots = []
        for kind, location, several in sites:
            key = (location.file, location.line, kind)
            ordinal = ordinals[key] = ordinals.get(key, -1) + 1
            slot = self._slots.setdefault(Site(kernel, location.file, location.line, kind, ordinal), len(self.seen))
            if slot == len(self.seen):
                self.seen.append(0)
            self.seen[slot] |= SEVERAL * several
            slots.append(slot)
        return slots

    def items(self) -> Iterator[tuple[Site, int]]:
        """Yield each mask with its bits, in the order of `seen`."""
        return zip(self._slots, self.seen, strict=True)


NAMESPACE: Final[dict[str, Any]] = {
    "np": np,
    "ranges": ranges,
    "inf": float("inf"),
    "nan": float("nan"),
    "EVERY": np.zeros(1, np.int64),
    "DTYPES": float_formats.CONTAINER,
    # masks
    "cover": cover,
    "select": select,
    # integers
    "checked_division": elementwise.checked_division,
    "checked_shift": elementwise.checked_shift,
    "divide": elementwise.divide,
    "multiply_high": elementwise.multiply_high,
    "shift_left": elementwise.shift_left,
    "shift_right_logical": elementwise.shift_right_logical,
    "unsigned": elementwise.unsigned,
    "unsigned_divide": elementwise.unsigned_divide,
    "unsigned_pick": elementwise.unsigned_pick,
    "unsigned_remainder": elementwise.unsigned_remainder,
    # floats
    "bitcast": float_formats.bitcast,
    "cut_to_tf32": float_formats.cut_to_tf32,
    "error_function": elementwise.error_function,
    "float_to_integer": float_formats.float_to_integer,
    "fused_multiply_add": elementwise.fused_multiply_add,
    "library": elementwise.library,
    "reciprocal_root": elementwise.reciprocal_root,
    "round_bf16": float_formats.round_bf16,
    "round_f16": float_formats.round_f16,
    "round_to": float_formats.round_to,
    "truncate_to": float_formats.truncate_to,
    # assembly
    "assembled": ptx.assembled,
    "assembly_of": ptx.assembly_of,
    # tiles
    "concatenate": tiles.concatenate,
    "dot": tiles.dot,
    "gather": tiles.gather,
    "histogram": tiles.histogram,
    "reduce_ignoring_nan": tiles.reduce_ignoring_nan,
    "reduce_maximum": tiles.reduce_maximum,
    "reduce_pairs": tiles.reduce_pairs,
    "scan": tiles.scan,
    "spread": lanes.spread,
    "stack": tiles.stack,
    # addresses and memory
    "add_wide": tiles.add_wide,
    "address_of": memory.address_of,
    "atomic": memory.atomic,
    "columns_of": memory.columns_of,
    "hinted": hints.hinted,
    "hinted_pointer": hints.hinted_pointer,
    "poll": memory.poll,
    "prefix_length": tiles.prefix_length,
    "unit_start": tiles.unit_start,
    # lanes and control flow
    "blend": lanes.blend,
    "branch": lanes.branch,
    "check_iterations": lanes.check_iterations,
    "collect": lanes.collect,
    "extremes": lanes.extremes,
    "head": lanes.head,
    "join": lanes.join,
    "longest_first": lanes.longest_first,
    "narrow": lanes.narrow,
    "restore": lanes.restore,
    "rows": lanes.rows,
    "take": lanes.take,
    "trip_counts": lanes.trip_counts,
}


@dataclass(slots=True)
class Plan:
    """What launches with the same scalar arguments and the same grid share.

    `scalars` has an array for each scalar argument and None for each tensor. `prepared` is what the generated code
    computes from them in the first launch.
    """

    scalars: list[Any]
    prepared: tuple[Any, ...] | None = None


MOST_PLANS: Final = 4
"""How many plans a program keeps: a case is launched several times with the same scalars."""


@dataclass(slots=True)
class Program:
    """A kernel ready to run: source, the source lines its numbers stand for, and what it does to its arguments.

    `origins` has for each line of the source the operation that it was generated for. `parameters` are the types of the
    arguments that are not constexprs, in order. `coverage_sites` are its masks: kind, line, and whether the mask has
    several elements. `elements` is the size of its largest tile. `arithmetic` says how it rounds. `undefined` says
    that results of integer operations may be undefined. `shared` is the least shared memory that it needs, in bytes.
    `namespace` holds builtins of an extension.
    """

    name: str
    source: str
    origins: list[Origin]
    sites: list[Location]
    coverage_sites: list[tuple[str, Location, bool]]
    parameters: list[tuple[str, Type]]
    stored: frozenset[str]
    loaded: frozenset[str]
    elements: int
    sequential: bool
    arithmetic: KernelArithmetic
    undefined: bool = False
    shared: int = 0
    namespace: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    code: CodeType | None = None
    function: Callable[..., None] | None = None
    prepare: Callable[..., tuple[Any, ...]] | None = None
    plans: dict[object, Plan] = field(default_factory=dict)

    def plan(self, key: object, scalars: Callable[[], list[Any]]) -> Plan:
        """Return the plan of a launch; the last few are kept."""
        plan = self.plans.get(key)
        if plan is None:
            if len(self.plans) >= MOST_PLANS:
                self.plans.clear()
            plan = self.plans[key] = Plan(scalars())
        return plan

    def compiled(self) -> CodeType:
        """Return the code object of the source."""
        if self.code is None:
            digest = hashlib.sha256(self.source.encode()).hexdigest()
            self.code = compile(self.source, f"<simulated {self.name} {digest[:16]}>", "exec")
        return self.code

    def forget(self) -> None:
        """Remove the source that tracebacks show, when the program is dropped."""
        if self.code is not None:
            linecache.cache.pop(self.code.co_filename, None)

    def ready(self, masks: Masks) -> Callable[..., None]:
        """Return the function that runs programs of a grid, and records what their masks show."""
        if self.function is None:
            code = self.compiled()
            filename = code.co_filename
            linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)
            module = {**NAMESPACE, **self.namespace}
            module["seen"], module["slots"] = masks.seen, masks.slots(self.name, self.coverage_sites)
            exec(code, module)  # noqa: S102 - running generated code is what this is for
            self.function, self.prepare = module["kernel"], module["prepare"]
        return self.function

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Add a note to an error that the generated code raises: the operation, the kernel's line, the generated line.

        Generated code is to be run within. Raises UnsupportedOperation for an error that is none of the simulator's.
        """
        try:
            yield
        except SimulatorError as error:
            self._explain(error, self._line_of(error))
            raise
        except Exception as error:
            line = self._line_of(error)
            self._explain(error, line)
            origin = self.origins[line - 1] if line else NO_ORIGIN
            what = f"{origin.operation or self.name} ({type(error).__name__}: {error})"
            raise UnsupportedOperation(what, origin.location) from error

    def _line_of(self, error: Exception) -> int:
        """Return the line of the generated source that raised an error; 0 if it was none."""
        filename = self.compiled().co_filename
        frames = traceback.walk_tb(error.__traceback__)
        return [0, *(line for frame, line in frames if frame.f_code.co_filename == filename)][-1]

    def _explain(self, error: Exception, line: int) -> None:
        if line:
            text = self.source.splitlines()[line - 1].strip()
            error.add_note(f"while running {self.origins[line - 1]} (generated line {line}: {text})")
