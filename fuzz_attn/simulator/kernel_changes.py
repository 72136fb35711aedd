"""Kernel changes: what may stand in place of a value in a kernel, as a programmer could have meant it.

Each change has words for the value as it is and as it would be, and a rank: those of a lower rank are more likely.
"""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from fuzz_attn.errors import UnknownValueError
from fuzz_attn.simulator.condition_changes import UNCHECKED, Change, full
from fuzz_attn.simulator.formulas import (
    BINARY,
    CASTS,
    PREDICATES,
    SHAPES,
    Array,
    Read,
    binary_in_words,
    in_words,
    is_known,
    kind_of,
    predicate_of,
    ranked,
    variable_of,
)
from fuzz_attn.simulator.range_changes import Ranges
from fuzz_attn.simulator.site_values import SUMS, fits, like_constants, other_numbers, reduction_of, short_name, similar
from fuzz_attn.simulator.switches import Compute, Site, Switches
from fuzz_attn.ttir.ir import Location, Operation, Value

DEPTH: Final = 3
"""Operations that may be left out one after the other."""
CHAIN: Final = 40
"""Operations before which, or behind which, another one may be moved."""
_NEUTRAL: Final = {
    ("arith.divsi", 1): (0, 1),
    ("arith.remsi", 1): (0,),
    ("arith.divf", 1): (0.0, 1.0, math.inf, -math.inf),
    **{("arith.muli", index): (1,) for index in (0, 1)},
    **{("arith.mulf", index): (1.0, math.inf, -math.inf) for index in (0, 1)},
    **{("arith.addi", index): (0,) for index in (0, 1)},
    **{("arith.addf", index): (0.0,) for index in (0, 1)},
    ("arith.subi", 1): (0,),
    ("arith.subf", 1): (0.0,),
}
"""Numbers as an operand that leave the operation out, or make nonsense of it."""
OTHER_LOAD: Final = "other load"
"""How the name of a change begins that may be of another operation of the line, such as another product of factors."""
MOVED: Final = ("before ", "behind ")
"""How the name of a change of the order of two operations begins."""
LIKE_ITS_OWN: Final = -0.5
"""The rank of a constant with a like name, such as the size of a value for that of a key: before one more or less."""
RESCALED: Final = 1.5
"""The rank of a sum that a softmax keeps times what an exponential of its maximum is for each row."""
LOG2_E: Final = math.log2(math.e)
_RENAMED: Final = {
    "arith.addi": ("arith.subi",),
    "arith.subi": ("arith.addi",),
    "arith.muli": ("arith.divsi", "arith.addi"),
    "arith.divsi": ("arith.remsi", "arith.muli"),
    "arith.remsi": ("arith.divsi",),
    "arith.andi": ("arith.ori",),
    "arith.ori": ("arith.andi",),
    "arith.minsi": ("arith.maxsi",),
    "arith.maxsi": ("arith.minsi",),
    "arith.addf": ("arith.subf",),
    "arith.subf": ("arith.addf",),
    "arith.mulf": ("arith.divf",),
    "arith.divf": ("arith.mulf",),
    "arith.maxnumf": ("arith.minnumf",),
    "arith.minnumf": ("arith.maxnumf",),
    "math.exp": ("math.exp2",),
    "math.exp2": ("math.exp",),
    "math.log": ("math.log2",),
    "math.log2": ("math.log",),
}


_HOW: Final = {
    **dict.fromkeys(("ltle", "lelt", "gtge", "gegt"), "with equals"),
    **dict.fromkeys(("ltge", "gelt", "legt", "gtle"), "negated"),
    **dict.fromkeys(("ltgt", "gtlt", "lege", "gele"), "mirrored"),
}
"""How a predicate changes, in the same words for `a < b` and for `b > a`, which the front end may make of it."""


def changes_of(site: Site, switches: Switches) -> list[Change]:
    """Return the changes of a site, the likeliest first; each name once."""
    found: dict[str, Change] = {}
    proposer = _Proposer(site, switches)
    for change in proposer.all():
        if change.new != change.old:
            found.setdefault(change.name, proposer.with_variable(change))
    return sorted(found.values(), key=lambda change: change.rank)


class _Proposer(Ranges):
    """Proposes what may stand in place of the value of one site."""

    def __init__(self, site: Site, switches: Switches) -> None:
        super().__init__(site)
        self.switches = switches

    # Proposals.

    def all(self) -> Iterator[Change]:
        """Yield all changes."""
        operation = self.operation
        if self.is_result:
            yield from self._of_predicate()
            yield from self._renamed()
            yield from self._operands()
            yield from self._wide()
            yield from self._moved()
            if operation.name == "arith.select":
                yield from self._arms()
            if operation.name == "tt.load":
                yield from self._loads()
        yield from self._unrounded()
        yield from self._left_out()
        yield from self._value()
        if self.kind == "i1":
            yield from self.conditions()
        if self.kind == "int":
            yield from self.from_begin()
            yield from self.in_the_whole()
            yield from self._integers()
        if self.kind == "f32":
            yield from self._floats()

    def with_variable(self, change: Change) -> Change:
        """Return the change of what a variable is before a loop as that of the line that sets it."""
        operation, index = self.operation, self.site.key.operand
        if operation.name != "scf.for" or index < _FIRST_INITIAL:
            return change
        name = variable_of(operation.regions[0][0].arguments[index - _FIRST_INITIAL + 1])
        if not name:
            return change
        file, last = operation.location.file, operation.location.line
        lines = (line for line in range(last - 1, max(0, last - CHAIN), -1) if _sets(name, file, line))
        place = Location(file, next(lines, last))
        return replace(change, old=f"{name} = {change.old}", new=f"{name} = {change.new}", place=place)

    def _of_predicate(self) -> Iterator[Change]:
        predicate = predicate_of(self.operation)
        if predicate not in PREDICATES:
            return
        for other, (sign, function) in PREDICATES.items():
            if other != predicate:

                def compute(read: Read, function: Callable[[Array, Array], Array] = function) -> Array:
                    left, right = (read(value) for value in self.operation.operands)
                    return function(left, right)

                left, right = (self.words(value, 1) for value in self.operation.operands)
                how = _HOW.get(predicate + other, other)
                near = how == "with equals" or {predicate, other} == {"eq", "ne"}
                yield self.change(f"predicate {how}", f"{left} {sign} {right}", 0 if near else 1, compute)

    def _renamed(self) -> Iterator[Change]:
        operation = self.operation
        if not is_known(operation):
            return
        for other in _RENAMED.get(operation.name, ()):
            new = Operation(other, operation.operands, operation.results, operation.text)
            yield self.change(f"to {other}", self.made(new), 1.2, partial(self.again, new))
        if operation.name == "arith.andi" and self.kind == "int":
            yield from self._remainders()
        if operation.name == "arith.divsi":
            yield from self._rounded_up()
        if operation.name in ("arith.subi", "arith.subf", "arith.divf", "arith.divsi", "arith.remsi"):
            swapped = operation.operands[::-1]
            words = in_words(operation, [self.words(value, 1) for value in swapped])
            yield self.change("operands swapped", words, 1, partial(self._on, operation, swapped))

    def _rounded_up(self) -> Iterator[Change]:
        """Yield a quotient that is rounded up, where it is not."""
        operation = self.operation
        left, right = (self.words(each, 1) for each in operation.operands)
        if self.is_for_rounding_up(*operation.operands):
            return

        def compute(read: Read) -> Array:
            number, divisor = (read(each) for each in operation.operands)
            return self.applied(operation, [number + divisor - 1, divisor])

        yield self.change("rounded up", f"({left} + {right} - 1) // {right}", 0, compute)

    def _remainders(self) -> Iterator[Change]:
        """Yield the remainder that bits of a number are taken for, which they are for powers of two only."""
        left, right = self.operation.operands
        number, maker = self.number(right), self.makers.get(self.root(right))
        less_one = maker is not None and maker.name == "arith.subi" and self.number(maker.operands[1]) == 1
        if maker is None or (number is None and not less_one):
            return
        divisor = maker.operands[0] if number is None else None

        def compute(read: Read) -> Array:
            array = read(left)
            by = np.asarray(int(number or 0) + 1) if divisor is None else read(divisor)
            return BINARY["arith.remsi"][1](array, np.broadcast_to(by, array.shape).astype(array.dtype))

        words = str(int(number or 0) + 1) if divisor is None else self.words(divisor, 1)
        yield self.change("remainder", f"{self.words(left, 1)} % {words}", 1, compute)

    def _on(self, operation: Operation, operands: list[Value], read: Read) -> Array:
        return self.again(operation, read, operands)

    def _operands(self) -> Iterator[Change]:
        """Yield the operation on another value in place of one operand."""
        operation = self.operation
        if not is_known(operation) or operation.name in CASTS:
            return
        for index, value in enumerate(operation.operands):
            number = self.number(value)
            if number is not None and not isinstance(number, bool):
                limits = {self.number(other) for other in self.named("int")} if operation.name == "arith.cmpi" else ()
                others = [*other_numbers(number), *((limit, 3) for limit in limits if limit is not None and limit > 1)]
                for near, rank in others:
                    if near not in _NEUTRAL.get((operation.name, index), ()):
                        yield self._with_number(index, near, rank)
                yield from self._constants(index, number)
            yield from self._loaded_instead(index, value)
            for other in self.alike(value):
                if other is value or self.root(other) is self.root(value):
                    continue
                operands = list(operation.operands)
                operands[index] = other
                words = in_words(operation, [self.words(each, 1) for each in operands])
                name, order = f"operand {index} {self.label(other)}", self._order_of_operand(value, other)
                yield self.change(name, words, order, partial(self.with_operand, index, other))

    def _order_of_operand(self, value: Value, other: Value) -> float:
        """Return the rank of another operand: low for one of a like name, and for a stride of the tensor addressed."""
        old, new = self.words(self.root(value)), self.words(other)
        if "stride" in new and "stride" in old and self.addressed:
            return 2.0 if new.startswith(self.addressed) else 2.8
        return 2.2 if similar(old, new) else 5.5 if "stride" in new else 3.5

    def _with_number(self, index: int, number: float, rank: float) -> Change:
        words = f"{number:.6g}" if isinstance(number, float) else str(number)
        return self._with_operand_of(index, f"operand {index} number {number}", words, rank, lambda: np.asarray(number))

    def _constants(self, index: int, number: float) -> Iterator[Change]:
        """Yield other constants of the launch in place of a number, those first whose name is like its own."""
        given = self.site.kernel.constants
        own = [name for name, constant in given.items() if constant == number]
        for name, constant in given.items():
            if constant in (number, 0, 1) or not own:
                continue
            alike = [each for each in own if like_constants(name, each)]
            words = short_name(name)
            new = partial(np.asarray, constant)
            change = self._with_operand_of(index, f"constant {name}", words, LIKE_ITS_OWN if alike else 4, new)
            yield replace(change, old=self._with_words(index, short_name(alike[0]))) if alike else change

    def _loaded_instead(self, index: int, value: Value) -> Iterator[Change]:
        """Yield the number behind a pointer of a like name, in place of one that is loaded for more than this."""
        maker = self.makers.get(self.root(value))
        if maker is None or maker.name != "tt.load" or maker.results[0].type.shape or self.kind != "f32":
            return
        own = self.parameter_of(maker.operands[0])
        for other in self.site.kernel.function.parameters:
            if own is not None and other is not own and other.type == own.type and similar(own.name, other.name):
                words = f"load({other.name.removeprefix('%')})"
                element = partial(self.switches.element, other, 0)
                yield self._with_operand_of(index, f"{OTHER_LOAD} {other.name} for {own.name}", words, 1.5, element)

    def _with_operand_of(self, index: int, name: str, new: str, rank: float, number: Callable[[], Array]) -> Change:
        """Return the operation with a number in place of an operand, which is known when the kernel runs."""
        operation = self.operation

        def compute(read: Read) -> Array:
            arrays = [read(each) for each in operation.operands]
            arrays[index] = np.full_like(arrays[index], number().reshape(-1)[0])
            return self.applied(operation, arrays)

        return self.change(name, self._with_words(index, new), rank, compute)

    def _with_words(self, index: int, new: str) -> str:
        """Return the operation in words, with others for one operand."""
        words = [self.words(each, 1) for each in self.operation.operands]
        words[index] = new
        return in_words(self.operation, words)

    def _wide(self) -> Iterator[Change]:
        """Yield integers that are widened before they are multiplied, not behind."""
        operation = self.operation
        inner = self.makers.get(operation.operands[0]) if operation.name == "arith.extsi" else None
        if inner is None or inner.name not in BINARY or self.type.element != "i64":
            return

        def compute(read: Read) -> Array:
            arrays = [read(self._before_cut(value)).astype(np.int64) for value in inner.operands]
            return self.applied(inner, arrays)

        yield self.change("in 64 bits", f"{self.made(inner)} in 64 bits", 0, compute)

    def _before_cut(self, value: Value) -> Value:
        maker = self.makers.get(value)
        return maker.operands[0] if maker is not None and maker.name == "arith.trunci" else value

    def _moved(self) -> Iterator[Change]:
        """Yield an operation computed before the operations in front of it, or behind those that follow it."""
        if self.kind != "f32" or not self.type.shape:
            return
        above = self._above(self.site.value)
        own = self.operation
        for index in self._inputs(own):
            passed = self._above(own.operands[index])
            for source in passed:
                over = next((each for each in passed if source in self.makers[each].operands), None)
                if over is not None and source.type == self.type and self.makers[source].location != own.location:
                    yield from self._before(own, index, source, over)
        for value in above:
            maker = self.makers[value]
            apart = maker.location != own.location
            if apart and self.operation.variable and value.type == self.type:
                for index in self._inputs(maker):
                    yield from self._behind(maker, index)

    def _inputs(self, operation: Operation) -> list[int]:
        """Return which operands may be the scores that an operation changes, where it is one of two operands."""
        if operation.name not in _MOVABLE:
            return []
        return [index for index, each in enumerate(operation.operands) if each.type == self.type]

    def _above(self, value: Value) -> list[Value]:
        """Return values of which one is made by known operations of its tile, the nearest first, itself among them."""
        found: list[Value] = []
        pending = [value]
        while pending and len(found) < CHAIN:
            each = pending.pop(0)
            maker = self.makers.get(each)
            if each in found or maker is None or not is_known(maker) or not each.type.shape:
                continue
            if maker.name not in SHAPES:
                found.append(each)
                pending += [operand for operand in maker.operands if operand.type.shape == self.type.shape]
        return found

    def _remade(
        self, value: Value, given: dict[Value, Array], read: Read, depth: int = 0, *, scalars: bool = False
    ) -> Array | None:
        """Return a value made anew of others that are given; None where it is not made of them.

        Only tiles are made anew, unless ``scalars`` asks for all.
        """
        if value in given:
            return given[value]
        maker = self.makers.get(value)
        if maker is None or depth > CHAIN or not is_known(maker) or not (value.type.shape or scalars):
            return None
        parts = [self._remade(operand, given, read, depth + 1, scalars=scalars) for operand in maker.operands]
        if all(part is None for part in parts):
            return None
        arrays = [read(operand) if part is None else part for operand, part in zip(maker.operands, parts, strict=True)]
        given[value] = self.applied(maker, arrays)
        return given[value]

    def _before(self, moved: Operation, index: int, source: Value, over: Value) -> Iterator[Change]:
        """Yield an operation on what one in front of it takes (``source``), in place of what that gives (``over``)."""

        def compute(read: Read) -> Array:
            arrays = [read(operand) for operand in moved.operands]
            arrays[index] = read(source)
            made = self._remade(moved.operands[index], {source: self.applied(moved, arrays)}, read)
            if made is None:
                raise UnknownValueError
            return made

        yield from self._order(f"before {index} {self.label(source)}", moved, over, "behind", "before", compute)

    def _behind(self, moved: Operation, index: int) -> Iterator[Change]:
        def compute(read: Read) -> Array:
            source = moved.operands[index]
            arrays = [read(operand) for operand in moved.operands]
            made = self._remade(self.site.value, {moved.results[0]: read(source)}, read)
            if made is None:
                raise UnknownValueError
            arrays[index] = made
            return self.applied(moved, arrays)

        name = f"behind {index} {self.label(moved.results[0])}"
        yield from self._order(name, moved, self.site.value, "before", "behind", compute)

    def _order(
        self, name: str, moved: Operation, value: Value, old: str, new: str, compute: Callable[[Read], Array]
    ) -> Iterator[Change]:
        """Yield the change of the order of two operations, with the lines of one function that they come from.

        Lines that set several variables, or that return, cannot change their places.
        """
        lines = [(one, other) for one in _places(moved) for other in _places(self.makers[value])]
        one, other = next((pair for pair in lines if pair[0].file == pair[1].file and pair[0] != pair[1]), lines[0])
        words = [linecache.getline(place.file, place.line).strip() for place in (one, other)]
        if all(map(_SETS_ONE.match, words)):
            change = self.change(name, f"{words[0]} {new} {words[1]}", 2, compute)
            yield replace(change, old=f"{words[0]} {old} {words[1]}", place=one)

    def _arms(self) -> Iterator[Change]:
        condition, left, right = self.operation.operands
        words = [self.words(each, 1) for each in (condition, left, right)]
        swapped = partial(self._on, self.operation, [condition, right, left])
        yield self.change("arms swapped", f"where({words[0]}, {words[2]}, {words[1]})", 1, swapped)
        for arm, value in enumerate((left, right)):
            yield self.change(f"arm {arm}", words[arm + 1], 1, partial(_read, value))
        if self.kind == "f32":
            for index, value in ((1, left), (2, right)):
                if self.number(value) is None:
                    continue
                for number in (-math.inf, 0.0, 1.0):
                    yield self._with_number(index, number, 1)

    def _loads(self) -> Iterator[Change]:
        """Yield loads from another tensor at the same offset, and from the next elements of the same."""
        own = self.parameter_of(self.operation.operands[0])
        if own is None or self.type.element not in ("i32", "i64", "f32"):
            return
        for parameter in self.site.kernel.function.parameters:
            if parameter.type.pointer and parameter.type == own.type and parameter is not own:
                words = f"load({parameter.name.removeprefix('%')})"
                rank = 1 if similar(own.name, parameter.name) else 3
                yield Change(f"load {parameter.name}", self.old, words, rank, partial(self._loaded, parameter, 0))
        for step in (1, -1):
            words = f"{self.old} of the {'next' if step > 0 else 'previous'} element"
            yield Change(f"load {step:+}", self.old, words, 3, partial(self._loaded, own, step))

    def _loaded(self, parameter: Value, step: int, read: Read, value: Array) -> Array:
        offset = read(self.operation.operands[0])
        found = self.switches.element(parameter, offset + step)
        return found.reshape(offset.shape)

    def _unrounded(self) -> Iterator[Change]:
        """Yield the value before it was rounded to a narrower type and widened again."""
        rounded = self.operation.operands[0] if self.operation.name == "arith.extf" else None
        maker = self.makers.get(rounded) if rounded is not None else None
        if rounded is None or maker is None or maker.name not in ("tt.fp_to_fp", "arith.truncf"):
            return
        value = maker.operands[0]
        if value.type == self.type:
            words = self.words(value)
            name = f"not rounded to {rounded.type.element}"
            yield Change(name, f"{words} in {rounded.type.element}", words, 1, lambda read, _: read(value))

    def _left_out(self) -> Iterator[Change]:
        """Yield what the value is made of, in its place."""
        pending = [(self.site.value, 0)]
        seen = {self.site.value}
        while pending:
            value, depth = pending.pop(0)
            maker = self.makers.get(value)
            if maker is None or depth >= DEPTH or maker.name in ("tt.load", "tt.dot", "tt.reduce"):
                continue
            if maker.name.startswith("scf."):
                continue
            for index, operand in enumerate(maker.operands):
                if operand in seen:
                    continue
                seen.add(operand)
                pending.append((operand, depth + (maker.name not in SHAPES)))
                if kind_of(operand.type) != self.kind or not fits(operand.type, self.type):
                    continue
                if self.number(operand) is not None or self.root(operand) is self.root(self.site.value):
                    continue
                if maker.name in SHAPES and self.makers.get(operand) is None:
                    continue
                rank = UNCHECKED if self.kind == "i1" else 1.0
                if depth or maker.name == "tt.clampf":  # a limit that somebody wrote is needed
                    rank = 2.4
                if index == 1 and maker.name in _OF_THE_FIRST:
                    rank = 5.5
                name = f"left out {depth} {index} {self.label(operand)}"
                yield self.change(name, self.words(operand), rank, partial(_read, operand))

    def _value(self) -> Iterator[Change]:
        """Yield other values that may be meant."""
        number = self.number(self.site.value)
        if number is not None and not isinstance(number, bool):
            for near, rank in other_numbers(number):
                words = f"{near:.6g}" if isinstance(near, float) else str(near)
                yield Change(f"number {near}", self.old, words, rank, partial(full, near))
        for other in self.alike(self.site.value):
            if self.root(other) is self.root(self.site.value):
                continue
            words = self.words(other)
            rank = 3 if similar(self.words(self.site.value), words) else 6
            yield self.change(
                f"value {self.label(other)}",
                words,
                rank,
                partial(self._with_axes, other),
            )

    def _with_axes(self, other: Value, read: Read) -> Array:
        return self.axes_of(self.site.value, other, read(other))

    def _integers(self) -> Iterator[Change]:
        for step in (1, -1):
            words = f"{self.old} {'+' if step > 0 else '-'} 1"
            yield Change(f"{step:+}", self.old, words, 1.8, partial(_plus, step))
        users = self.users()
        if self.addressed and users == {"tt.addptr"}:
            yield from self._strides_of_its_tensor()
        if self.is_result and (self.operation.name in SUMS or self.operation.name == "arith.divsi"):
            new = binary_in_words("max", self.old, "0")
            yield Change("max 0", self.old, new, 2.5, lambda _, value: np.maximum(value, 0))
        for other in self.named("int"):
            number, words = self.number(other), self.words(other)
            if self.root(other) is self.root(self.site.value) or other.type.shape not in ((), self.type.shape):
                continue
            stride = "stride" in words
            if not users <= SUMS and number is None and not stride:
                for sign, name in (("+", "arith.addi"), ("-", "arith.subi")):
                    new = binary_in_words(sign, self.old, words)
                    yield self.with_other(f"{sign} {self.label(other)}", new, 4, BINARY[name][1], other)
            if other.type.shape or (number is not None and number < 2):
                continue
            if not users <= {"arith.muli"}:
                new = binary_in_words("*", self.old, words)
                yield self.with_other(f"* {self.label(other)}", new, 3 if stride else 5, np.multiply, other)
            if stride:
                continue
            for sign, name in (("//", "arith.divsi"), ("%", "arith.remsi")):
                new = binary_in_words(sign, self.old, words)
                yield self.with_other(f"{sign} {self.label(other)}", new, 5, BINARY[name][1], other)
            yield from self._limited(other, number)

    def _strides_of_its_tensor(self) -> Iterator[Change]:
        """Yield an offset into a tensor that is made with that tensor's own strides, in place of another one's."""
        by_name = {each.name: each for each in self.site.kernel.function.parameters}
        for tensor in sorted({name.rpartition("stride")[0] for name in by_name} - {"", f"%{self.addressed}"}):
            own: dict[Value, Value] = {}
            for name, value in by_name.items():
                right = by_name.get(f"%{self.addressed}{name.removeprefix(tensor)}")
                if name.startswith(f"{tensor}stride") and right is not None and right.type == value.type:
                    own[value] = right
            if self.parts() & own.keys():
                words = f"the strides of {tensor.strip('%._')} in place of those of {self.addressed.strip('._')}"
                rightly = f"those of {self.addressed.strip('._')}"
                compute = partial(self._with_parameters, own)
                change = self.change(f"strides of {self.addressed} for {tensor}", rightly, 1.5, compute)
                yield replace(change, old=words, place=self._known_place())

    def _known_place(self) -> Location | None:
        """Return the line of the value or, where the IR names none, of what takes it; None where neither is known."""
        pending, seen = [self.operation], set[Operation]()
        while pending and len(seen) < CHAIN:
            operation = pending.pop(0)
            if operation.location.line:
                return operation.location
            seen.add(operation)
            pending += [user for made in operation.results for user in self.site.kernel.users.get(made, ())]
        return None

    def _with_parameters(self, given: dict[Value, Value], read: Read) -> Array:
        made = self._remade(self.site.value, {old: read(new) for old, new in given.items()}, read, scalars=True)
        if made is None:
            raise UnknownValueError
        return made

    def _limited(self, other: Value, number: float | None) -> Iterator[Change]:
        """Yield the value rounded down to a multiple of a number, or limited by a variable."""
        words = self.words(other)
        if number is not None:
            new = f"{self.old} // {words} * {words}"
            yield self.with_other(f"down to {self.label(other)}", new, 5, _rounded_down, other)
            return
        for sign, name in (("min", "arith.minsi"), ("max", "arith.maxsi")):
            new = binary_in_words(sign, self.old, words)
            yield self.with_other(f"{sign} {self.label(other)}", new, 5, BINARY[name][1], other)

    def _floats(self) -> Iterator[Change]:
        for number, words in ((2.0, "2"), (0.5, "0.5"), (-1.0, "-1"), (LOG2_E, "log2(e)"), (1 / LOG2_E, "ln(2)")):
            new = binary_in_words("*", self.old, words)
            yield Change(f"* {words}", self.old, new, 3, partial(_times, number))
        # Softmax is right with any number in place of the maximum, so dividing a maximum would only hide a mistake.
        adds = self.is_result and self.operation.name == "tt.reduce" and reduction_of(self.operation) == "sum"
        for other in self.named("f32"):
            words = self.words(other)
            if adds and len(other.type.shape) == 1:
                new = f"{self.old} / sum({words})"
                yield Change(f"/ sum {self.label(other)}", self.old, new, 2, self._over_sum(other))
            of_rows = self._is_of_rows(other)
            if self.root(other) is self.root(self.site.value) or not (of_rows or fits(other.type, self.type)):
                continue
            words += "[:, None]" * of_rows
            for sign, name in _FACTORS if of_rows else (*_FACTORS, ("+", "arith.addf"), ("-", "arith.subf")):
                new = binary_in_words(sign, self.old, words)
                rank = 4 if sign in "+-" else RESCALED if self._rescales(other) else 3 if other.type.shape else 2
                yield self.with_other(f"{sign} {self.label(other)}", new, rank, BINARY[name][1], other)
        for parameter in self.site.kernel.function.parameters:
            if parameter.type.pointer and parameter.type.element == "f32" and similar(parameter.name, "scale"):
                words = f"load({parameter.name.removeprefix('%')})"
                for sign, name in _FACTORS:
                    new = binary_in_words(sign, self.old, words)
                    function = BINARY[name][1]
                    yield Change(
                        f"{sign} load {parameter.name}",
                        self.old,
                        new,
                        2,
                        partial(self._with_loaded, parameter, function),
                    )

    def _over_sum(self, other: Value) -> Compute:
        """Return what divides a sum by that of another tile's elements."""

        def compute(read: Read, value: Array) -> Array:
            total = read(other).sum(axis=1)
            return value / ranked(np.where(total == 0, 1, total), len(self.type.shape))

        return compute

    def _rescales(self, other: Value) -> bool:
        """Return whether another value is an exponential for each row, and the value what a loop has summed so far."""
        maker = self.makers.get(self.root(other))
        summed = self.makers.get(self.site.value) is None and not self.site.kernel.is_parameter(self.site.value)
        return summed and self._is_of_rows(other) and maker is not None and maker.name in ("math.exp", "math.exp2")

    def _is_of_rows(self, other: Value) -> bool:
        """Return whether another value has a number for each row of the value's tile."""
        return len(other.type.shape) == 1 and len(self.type.shape) == 2 and other.type.shape[0] == self.type.shape[0]

    def _with_loaded(self, parameter: Value, function: Callable[[Array, Array], Array], _: Read, value: Array) -> Array:
        return function(value, ranked(self.switches.element(parameter, 0), len(self.type.shape)))


_FIRST_INITIAL: Final = 3
"""The first operand of a loop that is a variable's value before it."""


def _sets(name: str, file: str, line: int) -> bool:
    """Return whether a line of the source sets a variable."""
    return bool(re.match(rf"\s*{re.escape(name)}\s*=", linecache.getline(file, line)))


_SETS_ONE: Final = re.compile(r"\w+\s*[-+*/]?=[^=]")
"""A line that sets one variable."""
_MOVABLE: Final = frozenset({"arith.addf", "arith.subf", "arith.mulf", "arith.divf"})


def _places(operation: Operation) -> tuple[Location, ...]:
    return operation.location, *operation.callers


_OF_THE_FIRST: Final = frozenset(f"arith.{name}" for name in ("divsi", "remsi", "subi", "divf", "subf"))
"""Operations on their first operand, for which the second one cannot stand."""
_FACTORS: Final = (("*", "arith.mulf"), ("/", "arith.divf"))


def _read(other: Value, read: Read) -> Array:
    return read(other)


def _plus(step: int, _: Read, value: Array) -> Array:
    result: Array = value + step
    return result


def _times(number: float, _: Read, value: Array) -> Array:
    result: Array = value * value.dtype.type(number)
    return result


def _rounded_down(value: Array, step: Array) -> Array:
    result: Array = value - BINARY["arith.remsi"][1](value, step)
    return result
