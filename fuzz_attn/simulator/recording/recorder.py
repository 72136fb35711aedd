"""Recorder: makes a simulator's programs record the values of their operations, and keeps the digests.

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

from fuzz_attn.owners import owner_of
from fuzz_attn.simulator.codegen.accesses import offset_of
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.generator import Extension
from fuzz_attn.simulator.codegen.operations.table import HANDLERS
from fuzz_attn.simulator.codegen.program import Program
from fuzz_attn.simulator.codegen.terms import Term, Val
from fuzz_attn.simulator.codegen.tree.expressions import Name, call, constant
from fuzz_attn.simulator.codegen.tree.statements import Do
from fuzz_attn.simulator.recording.launches import (
    MOST_DIGESTS,
    Array,
    Entry,
    Launch,
    Site,
    digests_of,
    launch_of,
)
from fuzz_attn.simulator.runtime.float_formats import CONTAINER
from fuzz_attn.simulator.simulator import Simulator
from fuzz_attn.ttir.argument_types import Bound
from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Location, Operation, Type, Value

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
            self.launches.append(launch_of(program, bound, grid, _launch_line()))

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


def _launch_line() -> Location:
    """Return the line of the target that launches the kernel."""
    for frame in _callers(sys._getframe(1)):
        if owner_of(frame.f_code.co_filename, frame.f_code.co_name) == "target":
            return Location(frame.f_code.co_filename, frame.f_lineno)
    return UNKNOWN_LOCATION


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
