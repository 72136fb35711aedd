"""IR operators: changes of one operation of a kernel's IR that resemble mistakes of programmers.

Every change keeps the types, so that the kernel still runs. Changes that cannot be wrong are left out: dropping a
narrowing cast is more precise, and the operands of a commutative operation may be swapped. Of two changes with the same
effect (raise the constant of `x < 4`, or write `x <= 4`) only one is made.

A kernel is lowered anew for each compile key, so one source line becomes many operations. An
:class:`~fuzz_attn.mutation.audit_results.IrChange` is the same change of all of them that are alike.

*Rewriting* makes a copy of a kernel's tree with one operation replaced, and with others that count as it runs. The tree
itself does not change. A mutant whose operation ran and never gave another value cannot be killed by any case like
these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from pathlib import PurePath
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fuzz_attn.mutation.audit_results import IN_32_BITS, IrChange
from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.generator import Extension
from fuzz_attn.simulator.codegen.source_tree import Do, call
from fuzz_attn.ttir.ir import Block, Function, Operation, Type, Value, parse_literal
from fuzz_attn.ttir.value_graph import walk

FINITE_INFINITY: Final = -10000.0
"""The finite number that many kernels use in place of -inf."""

_PREDICATES: Final = {
    "slt": ("sle", "sge"), "sle": ("slt", "sgt"), "sgt": ("sge", "sle"), "sge": ("sgt", "slt"),
    "ult": ("ule", "uge"), "ule": ("ult", "ugt"), "ugt": ("uge", "ule"), "uge": ("ugt", "ult"),
    "olt": ("ole", "oge"), "ole": ("olt", "ogt"), "ogt": ("oge", "ole"), "oge": ("ogt", "olt"),
    "eq": ("ne",), "ne": ("eq",), "oeq": ("one",), "one": ("oeq",), "une": ("oeq",), "ueq": ("one",),
}  # fmt: skip
"""For each predicate its neighbour, if it has one, and its opposite."""

_EXCHANGED: Final = {
    "arith.addi": "arith.subi", "arith.subi": "arith.addi", "arith.addf": "arith.subf", "arith.subf": "arith.addf",
    "arith.divf": "arith.mulf", "arith.divsi": "arith.remsi", "arith.remsi": "arith.divsi",
    "arith.andi": "arith.ori", "arith.ori": "arith.andi", "arith.minsi": "arith.maxsi", "arith.maxsi": "arith.minsi",
    "arith.minnumf": "arith.maxnumf", "arith.maxnumf": "arith.minnumf",
    "arith.minimumf": "arith.maximumf", "arith.maximumf": "arith.minimumf",
    "math.exp": "math.exp2", "math.exp2": "math.exp", "math.log": "math.log2", "math.log2": "math.log",
}  # fmt: skip
"""Operations that are easily confused."""

_KEEPS_LEFT: Final = frozenset({
    "arith.addi", "arith.subi", "arith.muli", "arith.divsi", "arith.andi", "arith.ori", "arith.minsi", "arith.maxsi",
    "arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.minnumf", "arith.maxnumf", "arith.minimumf",
    "arith.maximumf", "tt.addptr",
})  # fmt: skip
_KEEPS_RIGHT: Final = _KEEPS_LEFT - {"arith.subi", "arith.subf", "arith.divf", "arith.divsi", "tt.addptr"}
"""Operations that may be forgotten, so that the left or the right operand is the result."""

_UNARY: Final = frozenset({"arith.negf", "math.absf", "math.absi", "math.sqrt", "math.rsqrt", "math.tanh"})
_ORDERED: Final = frozenset({"arith.subi", "arith.subf", "arith.divf", "arith.divsi", "arith.remsi"})
_ROUNDED: Final = frozenset({"arith.addf", "arith.subf", "arith.mulf", "arith.divf", "math.exp", "math.exp2", "tt.dot"})
"""Float32 results that a kernel may keep in too narrow a type."""

_AXES: Final = {"x": "y", "y": "z", "z": "x"}
PROBE: Final = "audit.probe"
"""An operation that compares a value before and after a change: see :mod:`fuzz_attn.mutation.ir_operators`."""

_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an operation: its name, its kind for the report, and a function that builds the replacement."""

    name: str
    kind: str
    build: Callable[[], Replacement]


Changes: TypeAlias = Iterator[Change]


class KernelFacts:
    """Facts of the whole kernel that changes need: which operation defines a value, its number of uses, arguments."""

    def __init__(self, function: Function) -> None:
        self.parameters = function.parameters
        self.sources: dict[Value, Operation] = {}
        self.uses: dict[Value, int] = {}
        for operation in walk(function.blocks):
            for result in operation.results:
                self.sources[result] = operation
            passed = [value for _, values in operation.successors for value in values]
            for value in (*operation.operands, *passed):
                self.uses[value] = self.uses.get(value, 0) + 1

    def constant(self, value: Value) -> float | int | bool | None:
        """Return the number of a constant value, None for any other value."""
        source = self.sources.get(value)
        if source is None or source.name != "arith.constant":
            return None
        return parse_literal(source.attributes.constant, value.type.element)

    def others(self, value: Value) -> list[Value]:
        """Return arguments that a caller may confuse with this one: the next stride, the next pointer of that type."""
        if value not in self.parameters or value.type.shape:
            return []
        stride = "stride" in value.name
        if not (stride or value.type.pointer):
            return []
        alike = [p for p in self.parameters if p.type == value.type and (p.type.pointer or ("stride" in p.name))]
        place = alike.index(value)
        return [other for other in (*alike[place + 1 :], *alike[:place]) if other is not value][:1]


def changes_of(operation: Operation, facts: KernelFacts) -> Changes:
    """Yield every change of one operation."""
    for makers in (
        *_BY_NAME.get(operation.name, ()),
        _exchanged,
        _forgotten,
        _swapped,
        _rounded,
        _arguments,
        _off_by_one,
    ):
        yield from makers(operation, facts)


def _new(
    operation: Operation, name: str = "", text: str | None = None, operands: list[Value] | None = None
) -> Operation:
    """Return a copy of an operation with new values as results; arguments replace its fields."""
    return Operation(
        name or operation.name,
        list(operation.operands if operands is None else operands),
        [new_value(result.type) for result in operation.results],
        operation.text if text is None else text,
        operation.regions,
        operation.successors,
        operation.location,
    )


def _instead(operation: Operation, *new: Operation) -> Replacement:
    """Return the replacement of an operation by others; the last one has results of the same types."""
    pairs = tuple(zip(operation.results, new[-1].results, strict=True))
    return Replacement(new, dict(pairs), tuple(pair for pair in pairs if not pair[0].type.pointer))


def _passed(operation: Operation, value: Value) -> Replacement:
    """Return the replacement of an operation by an existing value."""
    result = operation.results[0]
    return Replacement((), {result: value}, () if result.type.pointer else ((result, value),))


def _constant(operation: Operation, type_: Type, number: float) -> Operation:
    """Return a constant. Numbers are written as in Python, which the simulator also reads, even if the IR has bits."""
    text = str(number).lower() if isinstance(number, bool) else repr(number)
    result = new_value(type_)
    return Operation(
        "arith.constant", [], [result], f" dense<{text}>" if type_.shape else f" {text}", location=operation.location
    )


def _reworded(operation: Operation, text: str) -> Replacement:
    """Return the replacement of an operation by itself with other attributes."""
    return _instead(operation, _new(operation, text=text))


def _renamed(operation: Operation, name: str) -> Replacement:
    """Return the replacement of an operation by another one on the same operands."""
    return _instead(operation, _new(operation, name))


def _fixed(operation: Operation, number: float) -> Replacement:
    """Return the replacement of an operation by a constant."""
    return _instead(operation, _constant(operation, operation.results[0].type, number))


def _operand(operation: Operation, index: int, number: float) -> Replacement:
    """Return the replacement of one operand by a constant."""
    constant = _constant(operation, operation.operands[index].type, number)
    operands = list(operation.operands)
    operands[index] = constant.results[0]
    return _with_operands(operation, operands, constant)


def _with_operands(operation: Operation, operands: list[Value], *before: Operation) -> Replacement:
    """Return the replacement of an operation by itself on other operands, which are compared if results cannot be."""
    new = _new(operation, operands=operands)
    replacement = _instead(operation, *before, new)
    if replacement.compared and not operation.regions:
        return replacement
    moved = zip(operation.operands, operands, strict=True)
    compared = tuple(pair for pair in moved if pair[0] is not pair[1] and not pair[0].type.pointer)
    return Replacement(replacement.operations, replacement.instead, compared)


def _predicates(operation: Operation, _facts: KernelFacts) -> Changes:
    name = operation.text.split()[0].rstrip(",")
    for other in _PREDICATES.get(name, ()):
        text = operation.text.replace(name, other, 1)
        yield Change(f"{name} to {other}", "predicate", partial(_reworded, operation, text))
    for outcome in (True, False):
        yield Change(f"always {str(outcome).lower()}", "condition", partial(_fixed, operation, outcome))


def _arms(operation: Operation, facts: KernelFacts) -> Changes:
    condition, left, right = operation.operands
    if not _only_compares(condition, facts):
        yield Change("arms swapped", "arms", partial(_with_operands, operation, [condition, right, left]))
        yield Change("first arm always", "arms", partial(_passed, operation, left))
        yield Change("second arm always", "arms", partial(_passed, operation, right))


def _branches(operation: Operation, facts: KernelFacts) -> Changes:
    condition = operation.operands[0]
    if len(operation.regions) == 2 and not _only_compares(condition, facts):
        yield Change("arms swapped", "arms", partial(_reversed, operation))


def _only_compares(condition: Value, facts: KernelFacts) -> bool:
    """Return whether a condition is a comparison without other uses: its own changes have the same effect."""
    source = facts.sources.get(condition)
    return source is not None and source.name in ("arith.cmpi", "arith.cmpf") and facts.uses[condition] == 1


def _reversed(operation: Operation) -> Replacement:
    new = _new(operation)
    new.regions = new.regions[::-1]
    return Replacement((new,), dict(zip(operation.results, new.results, strict=True)))


def _loads(operation: Operation, _facts: KernelFacts) -> Changes:
    if len(operation.operands) > 1:
        yield Change("mask dropped", "mask", partial(_with_operands, operation, operation.operands[:1]))
    if len(operation.operands) > 2:
        garbage = math.nan if operation.results[0].type.is_float else -1
        yield Change("other dropped", "other", partial(_operand, operation, 2, garbage))


def _stores(operation: Operation, _facts: KernelFacts) -> Changes:
    if len(operation.operands) > 2:
        yield Change("mask dropped", "mask", partial(_unmasked, operation))
    yield Change("never stored", "store", Replacement)


def _unmasked(operation: Operation) -> Replacement:
    return Replacement((_new(operation, operands=operation.operands[:2]),))


def _ranges(operation: Operation, _facts: KernelFacts) -> Changes:
    type_ = operation.results[0].type

    def shifted() -> Replacement:
        one, whole = _constant(operation, type_, 1), _new(operation)
        total = Operation(
            "arith.addi", [whole.results[0], one.results[0]], [new_value(type_)], location=operation.location
        )
        return Replacement((whole, one, total), {operation.results[0]: total.results[0]})

    yield Change("from 1", "constant", shifted)


def _program_ids(operation: Operation, _facts: KernelFacts) -> Changes:
    axis = operation.text.split()[0]
    text = operation.text.replace(axis, _AXES[axis], 1)
    yield Change(f"{axis} to {_AXES[axis]}", "program id", partial(_reworded, operation, text))


def _loops(operation: Operation, _facts: KernelFacts) -> Changes:
    for index, name, step in (
        (0, "first iteration skipped", 1),
        (1, "last iteration skipped", -1),
        (1, "one iteration more", 1),
    ):
        yield Change(name, "loop", partial(_stepped, operation, index, step))


def _stepped(operation: Operation, index: int, step: int) -> Replacement:
    bound = operation.operands[index]
    one, moved = _constant(operation, bound.type, step), new_value(bound.type)
    added = Operation("arith.addi", [bound, one.results[0]], [moved], location=operation.location)
    operands = list(operation.operands)
    operands[index] = moved
    new = _new(operation, operands=operands)
    return Replacement((one, added, new), dict(zip(operation.results, new.results, strict=True)), ((bound, moved),))


def _dots(operation: Operation, facts: KernelFacts) -> Changes:
    if facts.constant(operation.operands[2]) != 0:
        yield Change("accumulator dropped", "operand", partial(_operand, operation, 2, 0.0))


def _clamps(operation: Operation, _facts: KernelFacts) -> Changes:
    yield Change("clamp dropped", "operand", partial(_passed, operation, operation.operands[0]))


def _exchanged(operation: Operation, _facts: KernelFacts) -> Changes:
    other = _EXCHANGED.get(operation.name)
    if other is not None:
        short = other.partition(".")[2]
        yield Change(f"to {short}", "operation", partial(_renamed, operation, other))


def _forgotten(operation: Operation, facts: KernelFacts) -> Changes:
    if operation.name in _UNARY:
        yield Change("dropped", "operand", partial(_passed, operation, operation.operands[0]))
    for index, side, names in ((0, "left", _KEEPS_LEFT), (1, "right", _KEEPS_RIGHT)):
        other = facts.constant(operation.operands[1 - index]) if operation.name in names else None
        own = facts.constant(operation.operands[index]) if operation.name in names else None
        if operation.name in names and own is None and not _neutral(operation.name, other):
            yield Change(f"{side} operand only", "operand", partial(_passed, operation, operation.operands[index]))


def _neutral(name: str, number: float | bool | None) -> bool:
    """Return whether an operation with this constant returns its other operand."""
    additive = name.endswith(("addi", "subi", "addf", "subf", "addptr"))
    return number is not None and number == (0 if additive else 1)


def _swapped(operation: Operation, _facts: KernelFacts) -> Changes:
    if operation.name in _ORDERED and operation.operands[0] is not operation.operands[1]:
        yield Change("operands swapped", "operand", partial(_with_operands, operation, operation.operands[::-1]))


def _rounded(operation: Operation, _facts: KernelFacts) -> Changes:
    if operation.name in _ROUNDED and operation.results[0].type.element == "f32":
        yield Change("rounded to bfloat16", "precision", partial(_rounded_to, operation, "bf16"))
    if operation.name == "arith.muli" and operation.results[0].type.element == "i64":
        yield Change(IN_32_BITS, "precision", partial(_in_32_bits, operation))


def _rounded_to(operation: Operation, element: str) -> Replacement:
    whole, shape = _new(operation), operation.results[0].type.shape
    narrow, wide = new_value(Type(element, shape)), new_value(operation.results[0].type)
    first = Operation("arith.truncf", whole.results, [narrow], location=operation.location)
    second = Operation("arith.extf", [narrow], [wide], location=operation.location)
    return _instead(operation, whole, first, second)


def _in_32_bits(operation: Operation) -> Replacement:
    narrow = Type("i32", operation.results[0].type.shape)
    casts = [
        Operation("arith.trunci", [value], [new_value(narrow)], location=operation.location)
        for value in operation.operands
    ]
    product = Operation(
        "arith.muli", [cast.results[0] for cast in casts], [new_value(narrow)], location=operation.location
    )
    wide = Operation(
        "arith.extsi", product.results, [new_value(operation.results[0].type)], location=operation.location
    )
    return _instead(operation, *casts, product, wide)


def _arguments(operation: Operation, facts: KernelFacts) -> Changes:
    if operation.name in ("scf.for", "scf.while", "scf.if", "scf.yield", "cf.br", "cf.cond_br"):
        return
    for index, value in enumerate(operation.operands):
        for other in facts.others(value):
            operands = list(operation.operands)
            operands[index] = other
            # The name leaves out the other argument: the next one of a type differs between compile keys.
            yield Change(
                f"not {value.name.removeprefix('%')}", "argument", partial(_with_operands, operation, operands)
            )


def _off_by_one(operation: Operation, facts: KernelFacts) -> Changes:
    if not operation.name.startswith(("arith.", "math.", "tt.addptr")) or operation.name == "arith.select":
        return
    for index, value in enumerate(operation.operands):
        for how, other in _near(operation, index, facts.constant(value)):
            yield Change(f"constant {how}", "constant", partial(_operand, operation, index, other))


def _near(operation: Operation, index: int, number: int | float | bool | None) -> Iterator[tuple[str, float]]:
    """Yield a word and a number for each wrong constant; the word is the same in every compile key."""
    if number is None or isinstance(number, bool):
        return
    if isinstance(number, float):
        yield _near_float(number)
        return
    compared = operation.text.split()[0].rstrip(",")[1:] if operation.name == "arith.cmpi" else ""
    towards = 1 if index == 1 else -1
    by_predicate = {"lt": towards, "ge": towards, "le": -towards, "gt": -towards}.get(compared)
    for how, step in (("raised", 1), ("lowered", -1)):
        divides = operation.name in ("arith.divsi", "arith.remsi") and index == 1
        if step != by_predicate and not (divides and number + step == 0):
            yield how, number + step


def _near_float(number: float) -> tuple[str, float]:
    if number == -math.inf:
        return "finite", FINITE_INFINITY
    return ("1 for 0", 1.0) if number == 0 else ("doubled", number * 2)


def _carried(operation: Operation, _facts: KernelFacts) -> Changes:
    """Yield changes that never update one carried value of a loop."""
    body = operation.regions[0][0]
    for index, (argument, value) in enumerate(zip(body.arguments[1:], body.operations[-1].operands, strict=False)):
        if argument is not value:
            yield Change(f"value {index} not carried on", "loop", partial(_stuck, operation, index))


def _stuck(operation: Operation, index: int) -> Replacement:
    new = _new(operation)
    body = operation.regions[0][0]
    last = body.operations[-1]
    operands = list(last.operands)
    operands[index] = body.arguments[1 + index]
    block = type(body)(
        body.label, body.arguments, [*body.operations[:-1], Operation(last.name, operands, location=last.location)]
    )
    new.regions = [[block]]
    return Replacement((new,), dict(zip(operation.results, new.results, strict=True)))


_BY_NAME: Final[dict[str, tuple[Callable[[Operation, KernelFacts], Changes], ...]]] = {
    "arith.cmpi": (_predicates,),
    "arith.cmpf": (_predicates,),
    "arith.select": (_arms,),
    "scf.if": (_branches,),
    "scf.for": (_loops, _carried),
    "tt.load": (_loads,),
    "tt.store": (_stores,),
    "tt.make_range": (_ranges,),
    "tt.get_program_id": (_program_ids,),
    "tt.dot": (_dots,),
    "tt.clampf": (_clamps,),
}


@lru_cache(maxsize=512)
def changes_in(function: Function) -> dict[IrChange, tuple[Operation, Change]]:
    """Return every change of a parsed kernel, in the order of its text, with the operation to change and how."""
    facts = KernelFacts(function)
    found: dict[IrChange, tuple[Operation, Change]] = {}
    ordinals: dict[tuple[str, int, str], int] = {}
    for operation in walk(function.blocks):
        file, line = "/".join(PurePath(operation.location.file).parts[-2:]), operation.location.line
        place = (file, line, operation.name)
        ordinals[place] = ordinal = ordinals.get(place, -1) + 1
        for change in changes_of(operation, facts):
            key = IrChange(function.name, file, line, operation.name, ordinal, change.name, change.kind)
            found.setdefault(key, (operation, change))
    return found


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Makes a change in every parsed kernel that has its operation; other kernels stay as they are.

    ``probed`` adds probes that count whether the change makes a difference.
    """

    change: IrChange | None = None
    probed: bool = False

    def __call__(self, function: Function) -> Function:
        """Return the changed kernel, or the same object where there is nothing to change."""
        if self.change is None or self.change.kernel != function.name:
            return function
        found = changes_in(function).get(self.change)
        if found is None:
            return function
        operation, change = found
        return rewritten(function, operation, change.build(), probed=self.probed)


@dataclass(frozen=True, slots=True)
class Replacement:
    """The replacement of an operation.

    ``operations`` replace it and define new values; ``instead`` maps each result of the old operation to the value that
    the rest of the kernel uses. ``compared`` are pairs of a value before and after, to see whether the change makes a
    difference; empty where every execution makes one.
    """

    operations: tuple[Operation, ...] = ()
    instead: dict[Value, Value] = field(default_factory=dict)
    compared: tuple[tuple[Value, Value], ...] = ()


def new_value(type_: Type) -> Value:
    """Return a value of a unique name."""
    return Value(f"%audit{next(_NUMBERS)}", type_)


def rewritten(function: Function, target: Operation, replacement: Replacement, *, probed: bool = False) -> Function:
    """Return the function with an operation replaced; ``probed`` adds probes that count whether values differ."""
    copier = _Copier(target, replacement, probed)
    return Function(function.name, function.parameters, copier.blocks(function.blocks))


class _Copier:
    def __init__(self, target: Operation, replacement: Replacement, probed: bool) -> None:
        self._target = target
        self._replacement = replacement
        self._probed = probed
        self._instead: dict[Value, Value] = {}

    def blocks(self, blocks: list[Block]) -> list[Block]:
        return [Block(block.label, block.arguments, list(self._operations(block))) for block in blocks]

    def _operations(self, block: Block) -> Iterator[Operation]:
        for operation in block.operations:
            if operation is self._target:
                yield from self._replaced(operation)
            else:
                yield self._copied(operation)

    def _replaced(self, operation: Operation) -> Iterator[Operation]:
        """Yield the replacement, with probes before an operation without results, because that may end its block."""
        new = [self._copied(other) for other in self._replacement.operations]
        last = [new.pop()] if new and not new[-1].results else []
        if self._probed and any(before in operation.results for before, _ in self._replacement.compared):
            yield self._copied(operation)
        yield from new
        if self._probed:
            for pair in self._replacement.compared or ((),):
                yield self._copied(Operation(PROBE, list(pair), location=operation.location))
        yield from last
        self._instead.update(self._replacement.instead)

    def _copied(self, operation: Operation) -> Operation:
        return Operation(
            operation.name,
            [self._instead.get(value, value) for value in operation.operands],
            list(operation.results),
            operation.text,
            [self.blocks(region) for region in operation.regions],
            [(label, [self._instead.get(value, value) for value in passed]) for label, passed in operation.successors],
            operation.location,
        )


_BUILTIN = "audit_probe"


@dataclass
class Tally:
    """How often the changed operation ran, and how often it gave another value than before."""

    reached: int = 0
    differed: int = 0

    def count(self, *values: npt.NDArray[Any]) -> None:
        """Count one run with the values before and after the change; without values, every run differs."""
        self.reached += 1
        self.differed += len(values) != 2 or _differ(*values)


def _differ(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> bool:
    before, after = np.broadcast_arrays(before, after)
    same = (before == after) | ((before != before) & (after != after))  # noqa: PLR0124 - NaN is what differs from itself
    return not same.all()


@dataclass
class Probes:
    """The probes of one simulator, and what they counted."""

    tally: Tally = field(default_factory=Tally)

    @property
    def extension(self) -> Extension:
        """What a simulator needs to run probed kernels."""
        return Extension({PROBE: _emit}, {_BUILTIN: self._count})

    def reset(self) -> None:
        """Count from 0."""
        self.tally = Tally()

    def _count(self, *values: npt.NDArray[Any]) -> None:
        self.tally.count(*values)


def _emit(emitter: Emitter, operation: Operation) -> None:
    terms = [emitter.array(emitter.single(emitter.val(value))) for value in operation.operands]
    emitter.add(Do(call(_BUILTIN, *map(emitter.read, terms))))
