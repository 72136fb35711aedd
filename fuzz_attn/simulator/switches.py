"""Switches: a simulator whose programs pass each value through a switch, so that one program tries many changes.

While no change is chosen, a launch computes what it always does. A chosen change replaces the value at some places of
a kernel's source by another one, made of what the kernel knows there. So a change costs a launch and no new program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from fuzz_attn.errors import LoopLimitError, LoweringError, UnknownValueError
from fuzz_attn.simulator.access_checks import Shadows
from fuzz_attn.simulator.codegen.access_plans import offset_of
from fuzz_attn.simulator.codegen.emitter import Emitter, Handler
from fuzz_attn.simulator.codegen.generator import HANDLERS, Extension
from fuzz_attn.simulator.codegen.program import Program
from fuzz_attn.simulator.codegen.source_tree import Assign, Constant, Do, call, constant
from fuzz_attn.simulator.codegen.terms import KnownRange, Term
from fuzz_attn.simulator.formulas import SHAPES, Array, Read, number_of, ranked, reshaped
from fuzz_attn.simulator.recorder import launch_line
from fuzz_attn.simulator.runtime.float_formats import CONTAINER
from fuzz_attn.simulator.session import memory_of, scalars
from fuzz_attn.simulator.simulator import Rewrite, Simulator
from fuzz_attn.ttir.ir import Block, Function, Location, Operation, Type, Value
from fuzz_attn.ttir.lowering import Bound
from fuzz_attn.ttir.triton_compat import python_function

_SWITCH: Final = "switch_value"
_NOTE: Final = "note_value"
SWITCHED_OPERANDS: Final[dict[str, tuple[int, ...]]] = {
    "tt.load": (1, 2),
    "tt.store": (1, 2),
    "tt.addptr": (1,),
    "tt.dot": (0, 1, 2),
    "tt.reduce": (0,),
    "scf.for": (0, 1, *range(3, 16)),
    "scf.if": (0,),
}
"""Operations of which an operand has a switch of its own, where the value has other uses too."""
BY_FLOW: Final = frozenset({"scf.for", "scf.if", "scf.while"})
_UNSWITCHED: Final = SHAPES | BY_FLOW | {"arith.constant"}


class Key(NamedTuple):
    """A place of the source: file, line, name of the operation, which of that name there, and which operand of it."""

    file: str
    line: int
    operation: str
    ordinal: int
    operand: int


NOWHERE: Final = Key("", 0, "", 0, -1)


@dataclass(eq=False)
class Site:
    """A switch: an operation of a kernel, its result or (``operand`` from 0 on) one of its operands.

    ``known`` are the values that are computed before it, ``callers`` the lines of the calls around its own.
    """

    kernel: KernelSites
    key: Key
    operation: Operation
    value: Value
    callers: tuple[Location, ...]
    known: tuple[Value, ...]


class KernelSites:
    """The switches of one parsed kernel, which operation makes each of its values, and the constants it is made for."""

    def __init__(self, function: Function, constants: dict[str, int]) -> None:
        self.function = function
        self.constants = constants
        self.makers: dict[Value, Operation] = {}
        self.uses: dict[Value, int] = {}
        self.users: dict[Value, list[Operation]] = {}
        self.sites: list[Site] = []
        self.begins: dict[Operation, list[Value]] = {}
        """What blocks take, by the first operation of each."""
        self._ordinals: dict[tuple[object, ...], int] = {}
        entry = list(function.parameters)
        self._parameters = set(function.parameters)
        first, *later = function.blocks
        self._count_uses(function.blocks)
        self._add(first, entry)
        for block in later:
            self._add(block, [*entry, *block.arguments])

    def _count_uses(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            for operation in block.operations:
                passed = [value for _, values in operation.successors for value in values]
                for value in (*operation.operands, *passed):
                    self.uses[value] = self.uses.get(value, 0) + 1
                for operand in operation.operands:
                    self.users.setdefault(operand, []).append(operation)
                for result in operation.results:
                    self.makers[result] = operation
                for region in operation.regions:
                    self._count_uses(region)

    def _add(self, block: Block, known: list[Value]) -> None:
        """Add the switches of a block; ``known`` grows by what it computes."""
        if block.arguments and block.operations:
            self.begins[block.operations[0]] = block.arguments
        for operation in block.operations:
            location = operation.location
            place = (location.file, location.line, operation.name)
            called = (place, operation.callers)
            ordinal = self._ordinals[called] = self._ordinals.get(called, -1) + 1
            for index in self._switched_operands(operation):
                if self._needs_own(operation.operands[index], operation):
                    self._add_site(operation, operation.operands[index], Key(*place, ordinal, index), known)
            if operation.name not in ("tt.reduce", "tt.scan"):
                for region in operation.regions:
                    inner = list(known)
                    for nested in region:
                        inner += nested.arguments
                        self._add(nested, inner)
            result = operation.results[0] if len(operation.results) == 1 else None
            if result is not None and operation.name not in _UNSWITCHED and not result.type.pointer:
                self._add_site(operation, result, Key(*place, ordinal, -1), known)
            known += operation.results

    def _switched_operands(self, operation: Operation) -> list[int]:
        """Return the operands that may have a switch of their own: named ones, and what loops and branches give."""
        if not operation.name.startswith(("arith.", "math.")):
            return [index for index in SWITCHED_OPERANDS.get(operation.name, ()) if index < len(operation.operands)]
        return [
            index
            for index, value in enumerate(operation.operands)
            if value not in self._parameters and (not self.makes(value) or self.makes(value) in BY_FLOW)
        ]

    def makes(self, value: Value) -> str:
        """Return the name of the operation that makes a value; empty for a parameter, and for what a block takes."""
        maker = self.makers.get(value)
        return "" if maker is None else maker.name

    def _needs_own(self, value: Value, operation: Operation) -> bool:
        """Return whether an operand needs a switch of its own beside that of what makes it."""
        if value.type.pointer or operation.operands.count(value) > 1:
            return False
        maker = self.makers.get(value)
        return maker is None or maker.name in _UNSWITCHED or self.uses[value] > 1

    def _add_site(self, operation: Operation, value: Value, key: Key, known: list[Value]) -> None:
        self.sites.append(Site(self, key, operation, value, operation.callers, tuple(known)))

    def is_parameter(self, value: Value) -> bool:
        """Return whether a value is an argument of the kernel."""
        return value in self._parameters


Grid = tuple[int, int, int]
"""The programs of a launch along each axis."""


@dataclass(frozen=True)
class Launched:
    """A launch: its kernel, its arguments by their names and types, its line in the target, its grid, its constants."""

    kernel: str
    arguments: dict[tuple[str, str], Any]
    location: Location
    grid: Grid = (1, 1, 1)
    constants: dict[str, int] = field(default_factory=dict)


NOT_HERE: Final = (UnknownValueError, ValueError, TypeError, IndexError, OverflowError)
"""What a change raises that cannot be computed at some place; there it changes nothing."""


class _Simulator(Simulator):
    """A simulator that may change the arguments, the constants and the grid of a launch."""

    def __init__(
        self,
        changed: Callable[[str, Bound], Bound],
        remade: Callable[[str, Bound], dict[str, Any]],
        grown: Callable[[str, Bound, Grid], Grid],
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._changed, self._remade, self._grown = changed, remade, grown
        self.rejected: LoweringError | None = None

    def rewritten(self, kernel: Any, bound: Bound, rewrite: Rewrite) -> tuple[Function, Program]:
        """Return the program of a launch with switches, or keep why Triton does not compile the kernel."""
        try:
            return super().rewritten(kernel, bound, rewrite)
        except LoweringError as error:
            self.rejected = error
            raise

    def grid(self, kernel: Any, bound: Bound, grid: Grid) -> Grid:
        """Return the grid of a launch, or another one."""
        return self._grown(python_function(kernel).__name__, bound, grid)

    def bind(
        self, kernel: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], *, constant_ones: bool = False
    ) -> Bound:
        """Return the arguments of a launch, bound to its parameters and changed."""
        name = python_function(kernel).__name__
        bound = super().bind(kernel, arguments, keywords, constant_ones=constant_ones)
        constants = self._remade(name, bound)
        if constants:
            bound = super().bind(kernel, (), {**bound.values, **constants}, constant_ones=constant_ones)
        changed = self._changed(name, bound)
        wide = in_64_bits(changed)
        return self._changed(name, super().bind(kernel, (), {**bound.values, **wide})) if wide else changed


def in_64_bits(bound: Bound) -> dict[str, Any]:
    """Return the parameters with numbers that are changed to some beyond 32 bits; the kernel is another one then."""
    found: dict[str, Any] = {}
    for (name, type_), value in zip(bound.form.passed, bound.passed, strict=True):
        parameter, _, part = name.partition(".")
        whole = found.get(parameter, bound.values[parameter])
        fits = type_ != "i32" or -(1 << 31) <= value < 1 << 31
        if not fits and (not part or part in getattr(whole, "_fields", ())):
            found[parameter] = whole._replace(**{part: value}) if part else value
    return found


Compute = Callable[[Read, Array], Array]
"""Returns what stands in place of a value, from a reader of other values and the value itself."""


@dataclass
class Switches:
    """The switches of all kernels that were launched, and what is chosen at each.

    ``chosen`` has what replaces the value of a site; ``watching`` is called with each value instead, if it is set.
    """

    simulator: _Simulator = field(init=False)
    sites: list[Site] = field(default_factory=list)
    chosen: dict[Site, Compute] = field(default_factory=dict)
    watching: Callable[[Site, Read, Array], None] | None = None
    parsed: Callable[[Sequence[Site]], None] = lambda sites: None
    launched: list[Launched] = field(default_factory=list)
    _constants: dict[str, int] = field(default_factory=dict)
    _passed: list[str] = field(default_factory=list)
    passing: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None
    making: tuple[str | None, str, Callable[[dict[str, Any]], int | None]] | None = None
    """The kernel, or None for all, and the constant that is another number, made of what the launch is given."""
    latest: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The arguments and constants of the latest launch of each kernel."""
    growing: Callable[[str, Grid, dict[str, Any]], Grid] | None = None
    most_calls: int = 0
    calls: int = 0
    widens: bool = False
    """Whether a number that is passed needs 64 bits, for which the kernel is another one."""
    _numbers: dict[tuple[Operation, int], int] = field(default_factory=dict)
    _known: dict[Function, KernelSites] = field(default_factory=dict)
    _of_operation: dict[Operation, KernelSites] = field(default_factory=dict)
    _noted: dict[Value, int] = field(default_factory=dict)
    _values: list[Value] = field(default_factory=list)
    _now: dict[Value, tuple[Array, Array]] = field(default_factory=dict)
    _arguments: dict[str, Any] = field(default_factory=dict)
    _tensors: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the simulator."""
        handlers = {name: partial(self._emit, handler) for name, handler in HANDLERS.items()}
        extension = Extension(handlers, {_SWITCH: self._switched, _NOTE: self._note})
        self.simulator = _Simulator(self._bound, self._constant, self._grid, extension=extension, rewrite=self._seen)

    @property
    def rejected(self) -> LoweringError | None:
        """Why Triton did not compile a kernel; None where it compiled all."""
        return self.simulator.rejected

    @property
    def constants(self) -> dict[str, int]:
        """The constants of the kernel that was launched last, or was to be."""
        return self._constants

    def _bound(self, kernel: str, bound: Bound) -> Bound:
        """Return a launch's arguments with those in place that are chosen."""
        self._constants, self._passed = constants_of(bound), [name for name, _ in bound.form.passed]
        if self.passing is None:
            return bound
        names = [name for name, _ in bound.form.passed]
        passed = self.passing(kernel, dict(zip(names, bound.passed, strict=True)))
        changed = Bound(bound.values, [passed[name] for name in names], bound.form)
        self.widens = self.widens or bool(in_64_bits(changed))
        return changed

    def _constant(self, kernel: str, bound: Bound) -> dict[str, Any]:
        """Return the parameter with the constant that is chosen to be another number; nothing where none is."""
        if self.making is None or self.making[0] not in (None, kernel):
            return {}
        _, constant, number_of_launch = self.making
        number = number_of_launch(given_to(bound))
        parameter, _, part = constant.partition(".")
        if number is None or parameter not in bound.values:
            return {}
        return {parameter: bound.values[parameter]._replace(**{part: number}) if part else number}

    def _grid(self, kernel: str, bound: Bound, grid: Grid) -> Grid:
        """Return the grid of a launch, or the one that is chosen."""
        if self.growing is None:
            return grid
        passed = zip(bound.form.passed, bound.passed, strict=True)
        return self.growing(kernel, grid, {name: value for (name, _), value in passed})

    def launching(self, program: Program, bound: Bound, grid: Grid) -> None:
        """Begin a launch: its arguments are known to changes."""
        self._now = {}
        self.latest[program.name] = given_to(bound)
        names = [f"%{name}" for name, _ in program.parameters]
        self._arguments = dict(zip(names, scalars(bound), strict=True))
        self._tensors = dict(zip(names, bound.passed, strict=True))
        self.launched.append(
            Launched(
                program.name,
                dict(zip(bound.form.passed, bound.passed, strict=True)),
                launch_line(),
                grid,
                constants_of(bound),
            )
        )

    def element(self, parameter: Value, offset: Array | int) -> Array:
        """Return elements of a tensor that is an argument; those outside of it are its first or last one."""
        tensor = self._tensors.get(parameter.name)
        if tensor is None:
            raise UnknownValueError
        flat = memory_of(parameter.name, tensor, Shadows()).flat
        if not flat.size or flat.dtype.kind not in "if" or flat.dtype.itemsize < 4:
            raise UnknownValueError
        found: Array = flat[np.clip(np.atleast_1d(offset), 0, flat.size - 1)]
        return found

    # While a program is generated.

    def _seen(self, function: Function) -> Function:
        if function in self._known:
            return function
        if len(self._passed) == len(function.parameters):  # Triton 3.6 names a part of a tuple by its number
            for parameter, name in zip(function.parameters, self._passed, strict=True):
                parameter.name = f"%{name}"
        kernel = self._known[function] = KernelSites(function, self._constants)
        for site in kernel.sites:
            self._numbers[site.operation, site.key.operand] = len(self.sites)
            self.sites.append(site)
        for operation in _operations(function.blocks):
            self._of_operation[operation] = kernel
        self.parsed(kernel.sites)
        return function

    def _emit(self, handler: Handler, emitter: Emitter, operation: Operation) -> None:
        """Emit an operation, with switches of its operands before it and one of its result behind it."""
        kernel = self._of_operation.get(operation)
        if kernel is None:
            handler(emitter, operation)
            return
        for value in kernel.begins.get(operation, ()):
            self._emit_note(emitter, value)
        before = {}
        for index in range(len(operation.operands)):
            number = self._numbers.get((operation, index))
            if number is not None:
                value = operation.operands[index]
                before[value] = emitter.values[value]
                self._emit_switch(emitter, number, value)
        if operation.name == "tt.load" and emitter.val(operation.operands[0]).terms:
            self._emit_offset(emitter, operation.operands[0])
        handler(emitter, operation)
        emitter.values.update(before)
        number = self._numbers.get((operation, -1))
        if number is not None:
            self._emit_switch(emitter, number, operation.results[0])
        elif operation.name in BY_FLOW:
            for value in operation.results:
                self._emit_note(emitter, value)

    def _emit_switch(self, emitter: Emitter, number: int, value: Value) -> None:
        term = emitter.array(emitter.single(emitter.val(value)))
        name = emitter.fresh("s")
        given = call(_SWITCH, constant(number), emitter.lanes, emitter.read(term))
        emitter.add(Assign(name, given, effect=True))
        new = Term(name, value.type.shape, True, emitter.region, value.type.element)
        if value in emitter.tracked:
            new.range = KnownRange(-1, 1)  # of both signs: a division by a shift would be wrong below 0
        emitter.define(value, new)

    def _emit_note(self, emitter: Emitter, value: Value) -> None:
        """Note a value that control flow gives, which has no switch."""
        if not value.type.pointer:
            term = emitter.array(emitter.single(emitter.val(value)))
            emitter.add(Do(call(_NOTE, self._note_number(value), emitter.lanes, emitter.read(term))))

    def _note_number(self, value: Value) -> Constant:
        number = self._noted.get(value)
        if number is None:
            number = self._noted[value] = len(self._values)
            self._values.append(value)
        return constant(number)

    def _emit_offset(self, emitter: Emitter, pointer: Value) -> None:
        term = offset_of(emitter, emitter.val(pointer))
        emitter.add(Do(call(_NOTE, self._note_number(pointer), emitter.lanes, emitter.read(term))))

    # While a launch runs.

    def _switched(self, number: int, lanes: Array, array: Array) -> Array:
        """Return the value at a site, or what is chosen in its place, with a row for each program."""
        self.calls += lanes.size
        if self.most_calls and self.calls > self.most_calls:
            raise LoopLimitError("a changed loop runs too long")
        site = self.sites[number]
        type_ = site.value.type
        value = _whole(array, lanes, type_)
        if self.watching is not None:
            self.watching(site, partial(self._read, site, lanes), value)
        change = self.chosen.get(site)
        if change is not None:
            with contextlib.suppress(*NOT_HERE):
                value = _whole(np.asarray(change(partial(self._read, site, lanes), value)), lanes, type_)
        if site.key.operand < 0:
            self._now[site.value] = (lanes, value)
        return value

    def _note(self, number: int, lanes: Array, array: Array) -> None:
        value = self._values[number]
        self._now[value] = (lanes, array)

    def _read(self, site: Site, lanes: Array, value: Value) -> Array:
        """Return a value as it is at a site now."""
        maker = site.kernel.makers.get(value)
        number = number_of(maker)
        if number is not None:
            return np.full((1,) * (len(value.type.shape) + 1), number, CONTAINER[value.type.element])
        if site.kernel.is_parameter(value):
            if value.type.pointer:
                return np.zeros(1, np.int64)
            argument = self._arguments.get(value.name)
            if argument is None:
                raise UnknownValueError
            return np.asarray(argument).reshape(1)
        if maker is not None and maker.name in SHAPES and value not in self._now:
            if value.type.pointer:
                raise UnknownValueError
            return reshaped(maker, self._read(site, lanes, maker.operands[0]))
        return ranked(_rows_of(self._now.get(value), lanes), len(value.type.shape))


def given_to(bound: Bound) -> dict[str, Any]:
    """Return the constants and the arguments of a launch, by their names."""
    passed = {name: value for (name, _), value in zip(bound.form.passed, bound.passed, strict=True)}
    return constants_of(bound) | passed


def constants_of(bound: Bound) -> dict[str, int]:
    """Return the integers that a launch's program is made for, by their names."""
    passed = {name for name, _ in bound.form.passed}
    found: dict[str, int] = {}
    for name, value in bound.values.items():
        fields = getattr(value, "_asdict", None)
        leaves = {name: value} if fields is None else {f"{name}.{each}": part for each, part in fields().items()}
        found |= {each: part for each, part in leaves.items() if part.__class__ is int and each not in passed}
    return found


def _whole(array: Array, lanes: Array, type_: Type) -> Array:
    """Return a value with a row for each program and all elements of its tile, without a copy."""
    shape = (lanes.size, *type_.shape)
    if array.dtype != CONTAINER[type_.element]:
        array = array.astype(CONTAINER[type_.element])
    if array.shape == shape:
        return array
    return np.broadcast_to(ranked(array, len(type_.shape)), shape)


def _rows_of(noted: tuple[Array, Array] | None, lanes: Array) -> Array:
    """Return the rows of what was noted for other programs that belong to some of them."""
    if noted is None:
        raise UnknownValueError
    before, array = noted
    if before is lanes or len(array) == 1 or np.array_equal(before, lanes):
        return array
    order = np.argsort(before)
    places = order[np.minimum(np.searchsorted(before, lanes, sorter=order), before.size - 1)]
    if not np.array_equal(before[places], lanes):
        raise UnknownValueError
    return array[places]


def _operations(blocks: Iterable[Block]) -> Iterator[Operation]:
    """Yield the operations that a program runs one by one: those within reductions are none."""
    for block in blocks:
        for operation in block.operations:
            yield operation
            if operation.name not in ("tt.reduce", "tt.scan"):
                for region in operation.regions:
                    yield from _operations(region)
