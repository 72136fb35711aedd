"""Recorder: makes a simulator's programs record the values of their operations, and keeps the digests of each launch.

Only the programs of a simulator that has a recorder's extension call it; all other programs are as they were.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.owners import owner_of
from fuzz_attn.simulator.codegen.access_plans import offset_of
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.generator import HANDLERS, Extension
from fuzz_attn.simulator.codegen.program import Program
from fuzz_attn.simulator.codegen.source_tree import Do, Name, call, constant
from fuzz_attn.simulator.codegen.terms import Term, Val
from fuzz_attn.simulator.runtime.float_formats import CONTAINER
from fuzz_attn.simulator.simulator import Simulator
from fuzz_attn.ttir.argument_types import Bound, element_names
from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Location, Operation, Type, Value

Array = npt.NDArray[Any]

MOST_DIGESTS: Final = 1 << 23
"""Digests kept of one run of a target, 8 bytes each; what comes after them is not compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A place where a kernel records: an operation of its IR, and which of its values.

    ``part`` is what the value is to the operation, empty for its result. ``base`` names a pointer's tensor as the
    generated code does. ``arguments`` are the names of the operands that are arguments of the kernel, else empty.
    """

    operation: Operation
    part: str
    value: Value
    base: str = ""
    arguments: tuple[str, ...] = ()


@dataclass(slots=True)
class Entry:
    """One record: a site's number, the programs that ran it, and a digest for each, or one for all of them."""

    site: int
    lanes: Array
    digests: Array


@dataclass(slots=True)
class Launch:
    """One launch: its kernel, where the target launches it, its arguments in words, and its records in order.

    ``passed`` are the names of the arguments that are no constants.
    """

    kernel: str
    location: Location = UNKNOWN_LOCATION
    grid: tuple[int, int, int] = (1, 1, 1)
    arguments: dict[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    entries: list[Entry] = field(default_factory=list)

    def position(self, programs: Array) -> tuple[Array, Array, Array]:
        """Return the x, y and z of programs' numbers."""
        _, ny, nz = self.grid
        return programs // (ny * nz), programs // nz % ny, programs % nz

    def has(self, position: tuple[int, int, int]) -> bool:
        """Return whether the grid has a program at (x, y, z)."""
        return all(axis < extent for axis, extent in zip(position, self.grid, strict=True))

    def tensor(self, base: str) -> str:
        """Return the name of the tensor that the generated code calls `A3`, for example."""
        return self.passed[int(base[1:])]

    def number(self, position: tuple[int, int, int]) -> int:
        """Return the number of the program at (x, y, z)."""
        x, y, z = position
        _, ny, nz = self.grid
        return (x * ny + y) * nz + z


def launch_of(program: Program, bound: Bound, grid: tuple[int, int, int], location: Location) -> Launch:
    """Return a launch without records."""
    arguments = dict(words for name, value in bound.values.items() for words in _named(name, value))
    return Launch(program.name, location, grid, arguments, tuple(name for name, _ in program.parameters))


def _named(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the name of an argument and the argument in words; those of each element of a tuple."""
    if isinstance(value, tuple):
        for part, element in zip(element_names(name, value), value, strict=True):
            yield from _named(part, element)
    else:
        yield name, _in_words(value)


def _in_words(value: Any) -> str:
    """Return an argument in words: a number, or the type, the shape and the strides of a tensor."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} with strides {tuple(value.stride())}"
    return str(getattr(value, "__name__", repr(value)))


_WEIGHTS: Final = np.random.Generator(np.random.Philox(20261122)).integers(0, 1 << 63, 1 << 16, np.uint64) * 2 + 1
"""Odd numbers, so that a digest differs for sure where one element does."""


def digests_of(rows: Array) -> Array:
    """Return 64 bits for each row; any NaN counts as any other, since its bits say nothing of the arithmetic."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), np.array(np.nan, rows.dtype), rows)
    size = rows[0].size if len(rows) else 0
    bits = np.ascontiguousarray(rows).reshape(len(rows), size).view(f"u{rows.dtype.itemsize}")
    weights = _WEIGHTS if size <= _WEIGHTS.size else np.resize(_WEIGHTS, size)
    digests: Array = (bits.astype(np.uint64) * weights[:size]).sum(axis=1, dtype=np.uint64)
    return digests


_BUILTIN: Final = "record_value"
_USED: Final[dict[str, tuple[str, ...]]] = {
    "tt.load": ("address", "mask"),
    "tt.store": ("address", "value", "mask"),
    "tt.atomic_rmw": ("address", "value", "mask"),
    "scf.for": ("first number", "end", "step"),
    "scf.if": ("condition",),
}
"""Operations whose operands are recorded before they run, and what each operand is to the operation."""
_SILENT: Final = frozenset({"arith.constant", "scf.for", "scf.if", "scf.while"})
"""Operations whose results are not recorded: what numbers and loops result in shows where it is used first."""


class Place(NamedTuple):
    """One value of a run: launch, site, how often its program had run it before, and the program's (x, y, z)."""

    launch: int
    site: int
    occurrence: int
    program: tuple[int, int, int]


@dataclass
class Recorder:
    """Records the launches of one run of a target, and in a second run one value as a whole: ``wanted`` is ``found``.

    Sites have the same numbers in both runs. ``truncated`` says that there was no room for all digests.
    """

    simulator: Simulator = field(init=False)
    launches: list[Launch] = field(default_factory=list)
    truncated: bool = False
    wanted: Place | None = None
    found: Array | None = None
    _sites: list[Site] = field(default_factory=list)
    _numbers: dict[tuple[Operation, str], int] = field(default_factory=dict)
    _kernels: dict[int, Emitter] = field(default_factory=dict)
    _absolute: set[Value] = field(default_factory=set)
    """Integers made of addresses in memory, which differ from run to run."""
    _digests: int = 0
    _passed: int = 0
    _current: int = -1

    def __post_init__(self) -> None:
        """Make the simulator, which keeps the programs for a second run."""
        handlers = {name: partial(self._emit, handler) for name, handler in HANDLERS.items()}
        self.simulator = Simulator(extension=Extension(handlers, {_BUILTIN: self._record}))

    def run_again_for(self, wanted: Place) -> None:
        """Keep one value of the same run, which is to come again; the records stay as they are."""
        self.wanted, self.found = wanted, None
        self._passed, self._current = 0, -1

    def launching(self, program: Program, bound: Bound, grid: tuple[int, int, int]) -> None:
        """Begin the records of a launch."""
        self._current += 1
        if self.wanted is None:
            self.launches.append(launch_of(program, bound, grid, launch_line()))

    def sites_of(self, launch: Launch) -> dict[int, Site]:
        """Return the sites of a launch's kernel by their numbers, in the order of its text."""
        recorded = {entry.site for entry in launch.entries}
        emitters = {id(self._kernels[number]) for number in recorded}
        return {number: site for number, site in enumerate(self._sites) if id(self._kernels[number]) in emitters}

    # While a program is generated.

    def _emit(self, handler: Handler, emitter: Emitter, operation: Operation) -> None:
        """Emit an operation, with a record of what it uses before it and of its results behind it."""
        parts = _USED.get(operation.name, ())
        for part, value in zip(parts, operation.operands, strict=False):
            self._emit_record(emitter, operation, part, value)
        if "mask" in parts[len(operation.operands) :]:
            self._emit_absent_mask(emitter, operation)
        handler(emitter, operation)
        if operation.name == "tt.ptr_to_int" or not self._absolute.isdisjoint(operation.operands):
            self._absolute |= {value for value in operation.results if value.type.element == "i64"}
        if operation.name not in _SILENT:
            for number, value in enumerate(operation.results):
                self._emit_record(emitter, operation, f"result {number}" if number else "", value)

    def _emit_record(self, emitter: Emitter, operation: Operation, part: str, value: Value) -> None:
        val = emitter.val(value)
        if value in self._absolute or (val.type.pointer and val.base is None):
            return
        term = offset_of(emitter, val) if val.type.pointer else emitter.array(emitter.single(val))
        base = "" if val.base is None else val.base.name
        self._emit_call(emitter, Site(operation, part, value, base, _arguments(emitter, operation)), term)

    def _emit_absent_mask(self, emitter: Emitter, operation: Operation) -> None:
        """Record an access without a mask as one whose mask holds everywhere."""
        shape = operation.operands[0].type.shape
        site = Site(operation, "mask", Value("%everything", Type("i1", shape)))
        self._emit_call(emitter, site, emitter.array(emitter.literal(True, shape, "i1")))

    def _emit_call(self, emitter: Emitter, site: Site, term: Term) -> None:
        number = self._number(emitter, site)
        emitter.add(Do(call(_BUILTIN, constant(number), emitter.lanes, emitter.read(term))))

    def _number(self, emitter: Emitter, site: Site) -> int:
        """Return the number of a site; a loop's body is emitted several times and keeps its numbers."""
        key = (site.operation, site.part)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._sites)
            self._sites.append(site)
            self._kernels[number] = emitter
        return number

    # While a launch runs.

    def _record(self, number: int, lanes: Array, value: Array) -> None:
        """Keep the digests of a value, or the value of the wanted program."""
        rows = _rows(value, self._sites[number].value.type)
        if self.wanted is not None:
            if (self.wanted.site, self.wanted.launch) == (number, self._current):
                self._keep(self.wanted, lanes, rows)
        elif self._digests > MOST_DIGESTS:
            self.truncated = True
        else:
            entry = Entry(number, lanes, digests_of(rows))
            self._digests += entry.digests.size
            self.launches[-1].entries.append(entry)

    def _keep(self, wanted: Place, lanes: Array, rows: Array) -> None:
        places = np.flatnonzero(lanes == self.launches[wanted.launch].number(wanted.program))
        if len(places):
            if self._passed == wanted.occurrence:
                self.found = rows[places[0] if len(rows) > 1 else 0].copy()
            self._passed += 1


def _arguments(emitter: Emitter, operation: Operation) -> tuple[str, ...]:
    """Return the name of each operand that is an argument of the kernel, and an empty text for the others."""
    return tuple(value.name if _is_argument(emitter.val(value)) else "" for value in operation.operands)


def _is_argument(val: Val) -> bool:
    """Return whether a value is a parameter of the generated function, or a pointer to a tensor's first element."""
    names = [term.expression for term in val.terms]
    return not names if val.type.pointer else len(names) == 1 and isinstance(names[0], Name) and names[0].name[0] == "A"


def _rows(value: Array, type_: Type) -> Array:
    """Return a value as one tile for each program, or one for all of them, in the numpy type of its elements."""
    axes = [*value.shape, *[1] * (len(type_.shape) + 1 - value.ndim)]
    spread = np.broadcast_to(value.reshape(axes), (axes[0], *type_.shape))
    dtype: Any = np.int64 if type_.pointer else CONTAINER[type_.element]
    return np.ascontiguousarray(spread, dtype)


def launch_line() -> Location:
    """Return the line of the target that launches the kernel."""
    for frame in _callers(sys._getframe(1)):
        if owner_of(frame.f_code.co_filename, frame.f_code.co_name) == "target":
            return Location(frame.f_code.co_filename, frame.f_lineno)
    return UNKNOWN_LOCATION


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
