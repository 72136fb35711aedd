"""Site values: the values that are known at a place of a kernel, as its source names them, and which are alike."""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Final, Literal

from fuzz_attn.simulator.formulas import (
    CASTS,
    SHAPES,
    WIDENING,
    Array,
    in_words,
    kind_of,
    number_of,
    reshaped,
    variable_of,
)
from fuzz_attn.simulator.switches import BY_FLOW, Site
from fuzz_attn.ttir.ir import Location, Operation, Type, Value

_FAR: Final = 40
"""A value that so many operations lie before an address does not count as part of it."""
SUMS: Final = frozenset({"arith.addi", "arith.subi"})
_OF_OFFSETS: Final = frozenset({"arith.addi", "arith.muli"})
_NAMELESS: Final = SHAPES | CASTS | {"arith.constant"}


class SiteValues:
    """The values that are known at a site. ``old`` is its own value in words; ``names`` are those of variables."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.operation = site.operation
        self.makers = site.kernel.makers
        self.type = site.value.type
        self.kind = kind_of(site.value.type)
        self.names = _final_names(site)
        self.is_result = site.key.operand < 0
        self.old = self.words(site.value) if not self.is_result else self.made(site.operation)

    def words(self, value: Value, depth: int = 2) -> str:
        """Return a value in words: its name, else what makes it, at most so many operations deep."""
        maker = self.makers.get(value)
        number = number_of(maker)
        if number is not None:
            return f"{number:.6g}" if isinstance(number, float) else str(number)
        if self.site.kernel.is_parameter(value):
            return value.name.removeprefix("%")
        if maker is None or maker.name in BY_FLOW:
            return variable_after(value, maker) or "..."
        if value in self.names:
            return self.names[value]
        if maker.name in SHAPES or maker.name in CASTS:
            return self.words(maker.operands[0], depth)
        return self._returned(value, maker) or (self.made(maker, depth) if depth > 0 else "...")

    def made(self, operation: Operation, depth: int = 2) -> str:
        """Return an operation in words, without the name of its result."""
        operands = operation.operands
        if operation.name == "tt.load":
            return f"load({self._tensor(operands[0])})"
        if operation.name == "tt.get_program_id":
            return operation.variable or f"program_id({'xyz'.find(operation.attributes.keyword)})"
        if operation.name == "tt.make_range":
            return operation.variable or "arange"
        if operation.name == "tt.reduce":
            return f"{reduction_of(operation)}({self.words(operands[0], depth - 1)})"
        if operation.name == "tt.dot":
            operands = operands[:2]
        return in_words(operation, [self.words(each, depth - 1) for each in operands])

    def _returned(self, value: Value, maker: Operation) -> str:
        """Return the variable that a call sets to what its function returns; empty for a part of that."""
        place = maker.location
        whole = all(user.location != place for user in self.site.kernel.users.get(value, ()))
        if not maker.callers or not whole or not _line(place).startswith("return "):
            return ""
        found = _SET_TO_A_CALL.match(_line(maker.callers[0]))
        return "" if found is None else found[1]

    def _tensor(self, value: Value) -> str:
        parameter = self.parameter_of(value)
        return "..." if parameter is None else parameter.name.removeprefix("%")

    def parameter_of(self, value: Value) -> Value | None:
        """Return the tensor that an address points into."""
        for _ in range(40):
            if self.site.kernel.is_parameter(value):
                return value
            maker = self.makers.get(value)
            if maker is None or not maker.operands:
                return None
            value = maker.operands[0]
        return None

    @cached_property
    def addressed(self) -> str:
        """The name of the tensor whose addresses the value is a part of, without ``ptr``; empty where there is none."""
        pending, seen = [self.site.value], set[Value]()
        while pending and len(seen) < _FAR:
            value = pending.pop(0)
            seen.add(value)
            for user in self.site.kernel.users.get(value, ()):
                if user.name == "tt.addptr" and value is user.operands[1]:
                    return self._tensor(user.operands[0]).removesuffix("ptr")
                if user.name in SHAPES or user.name in CASTS or user.name in _OF_OFFSETS:
                    pending += [result for result in user.results if result not in seen]
        return ""

    def number(self, value: Value) -> float | int | bool | None:
        """Return the number that every element of a value is; None where that is not a constant."""
        return number_of(self.makers.get(self.root(value)))

    def root(self, value: Value) -> Value:
        """Return the value that another one is with other axes or in a wider type."""
        maker = self.makers.get(value)
        while maker is not None and (maker.name in SHAPES or maker.name in WIDENING):
            value = maker.operands[0]
            maker = self.makers.get(value)
        return value

    def is_for_rounding_up(self, number: Value, divisor: Value) -> bool:
        """Return whether a number has grown by about its divisor, as for a quotient that is rounded up."""
        for _ in range(2):
            maker = self.makers.get(number)
            if maker is None or maker.name not in SUMS:
                return False
            left, right = maker.operands
            if self.root(right) is self.root(divisor) or self.root(left) is self.root(divisor):
                return True
            added, size = self.number(right), self.number(divisor)
            if added is not None and size is not None and added == size - 1:
                return True
            number = left
        return False

    def users(self) -> set[str]:
        """Return the names of the operations that take the value; those that only give it axes are passed."""
        found, pending = set(), [self.site.value]
        while pending:
            for user in self.site.kernel.users.get(pending.pop(), ()):
                if user.name in SHAPES or user.name in CASTS:
                    pending += user.results
                else:
                    found.add(user.name)
        return found if self.is_result else {self.operation.name}

    def named(self, kind: str) -> list[Value]:
        """Return the values of a kind that have a name of their own, each once."""
        found: dict[Value, None] = {}
        for value in self.site.known:
            if kind_of(value.type) == kind and value is not self.site.value:
                root = self.root(value)
                maker = self.makers.get(root)
                by_flow = maker is None or (maker.name in BY_FLOW and bool(variable_after(root, maker)))
                if self.site.kernel.is_parameter(root) or root in self.names or by_flow:
                    found.setdefault(root if kind_of(root.type) == kind else value)
                elif number_of(maker) is not None and root.type.shape == ():
                    found.setdefault(root)
        return list(found)

    def alike(self, value: Value) -> list[Value]:
        """Return named values that may stand in place of one."""
        kind = kind_of(value.type)
        if not kind:
            return []
        scalar = not self.root(value).type.shape
        found = [
            other
            for other in self.named(kind)
            if (other.type.shape == () if scalar else fits(other.type, value.type) and other.type.shape)
            and number_of(self.makers.get(other)) is None
        ]
        if not scalar:
            roots = {self.root(other) for other in found}
            found += [
                other
                for other in self.site.known
                if other.type.shape == value.type.shape
                and kind_of(other.type) == kind
                and self.root(other) in self.names
                and self.root(other) not in roots
                and other is not self.site.value
            ]
            flat = self.root(value).type.shape
            found += [
                other
                for other in self.named(kind)
                if other.type.shape == flat != value.type.shape and other in self.names and other not in roots
            ]
        return found

    def axes_of(self, value: Value, other: Value, array: Array) -> Array:
        """Return an array of another value with the axes that a value has, where it has fewer."""
        if not other.type.shape or len(other.type.shape) == len(value.type.shape):
            return array
        shaping = []
        maker = self.makers.get(value)
        while maker is not None and (maker.name in SHAPES or maker.name in WIDENING):
            shaping.append(maker)
            maker = self.makers.get(maker.operands[0])
        for operation in reversed(shaping):
            array = reshaped(operation, array) if operation.name in SHAPES else array
        return array

    def tiles(self) -> list[Value]:
        """Return integers whose axes fit the value's, each root once."""
        found: dict[Value, Value] = {}
        for value in self.site.known:
            if value.type.shape and fits(value.type, self.type) and kind_of(value.type) == "int":
                root = self.root(value)
                if root in self.names and root.type.shape:
                    found.setdefault(root, value)
        return list(found.values())

    def label(self, value: Value) -> str:
        """Return the name of a value in every kernel that is made of the same source."""
        maker = self.makers.get(value)
        if maker is None:
            return value.name if self.site.kernel.is_parameter(value) else variable_of(value)
        number = number_of(maker)
        if number is not None:
            return str(number)
        shape = f"{len(value.type.shape)}" if maker.name in SHAPES else ""
        return f"{maker.variable or variable_of(value)}@{maker.location.line}{maker.name}{shape}"


_POINTER: Final = re.compile(r"(?i)(?:_|^)(?:ptrs?|pointers?)$")
"""How names of pointers end. The compiler gives them to their offsets too, which are no variables of the source."""


def _final_names(site: Site) -> dict[Value, str]:
    """Return the values that are all of a variable, and not a part of the expression that it is set to."""
    found: dict[Value, str] = {}
    before: tuple[str, Value] | None = None
    for value in site.known:
        maker = site.kernel.makers.get(value)
        if maker is None or maker.name == "arith.constant" or not maker.variable or _POINTER.search(maker.variable):
            continue
        if before is not None and before[0] != maker.variable:
            found[before[1]] = before[0]
        before = maker.variable, value
    if before is not None:
        found[before[1]] = before[0]
    return {value: name for value, name in found.items() if _is_computed(site, value)}


def _is_computed(site: Site, value: Value) -> bool:
    """Return whether a value is computed, and no part of a longer expression on its line."""
    maker = site.kernel.makers[value]
    users = site.kernel.users.get(value, ())
    uses = (user for user in users if user.location == maker.location)
    is_part = any(user.variable == maker.variable and user.name not in _NAMELESS for user in uses)
    is_passed = any(maker.location in user.callers for user in users)  # to a function that this line calls
    if any(len(user.callers) > len(maker.callers) for user in users):  # or that lines before it begin to call
        is_passed |= not re.search(rf"\b{re.escape(maker.variable)}\b[^=]*=", _line(maker.location))
    return not value.type.pointer and maker.name not in _NAMELESS and not is_part and not is_passed


def reduction_of(operation: Operation) -> Literal["max", "sum"]:
    """Return what a reduction of a tile computes: its largest number, or a sum."""
    inner = {each.name for each in operation.regions[0][0].operations}
    return "max" if any("max" in name for name in inner) else "sum"


def variable_after(value: Value, maker: Operation | None) -> str:
    """Return the variable that control flow leaves a value in; that of a loop is one of those that it goes through."""
    if maker is None or maker.name != "scf.for":
        return "" if maker is not None and len(maker.results) > 1 else variable_of(value)
    return variable_of(maker.regions[0][0].arguments[1 + maker.results.index(value)])


def _line(place: Location) -> str:
    return linecache.getline(place.file, place.line).strip()


_SET_TO_A_CALL: Final = re.compile(r"([A-Za-z_]\w*)\s*=\s*[\w.]+\([^()]*\)$")


def fits(inner: Type, outer: Type) -> bool:
    """Return whether a tile can be spread to another one's axes."""
    if not inner.shape or inner.shape == outer.shape:
        return True
    return len(inner.shape) == len(outer.shape) and all(
        own in (1, other) for own, other in zip(inner.shape, outer.shape, strict=True)
    )


def are_both_strides(name: str, other: str) -> bool:
    """Return whether two names are those of strides, or neither is."""
    return ("stride" in name) == ("stride" in other)


def similar(name: str, other: str) -> bool:
    """Return whether two names share a word."""
    return bool(_parts(name) & _parts(other))


def short_name(name: str) -> str:
    """Return the name of a parameter, or of its part where it is a tuple.

    >>> short_name("tiling.TILE_SIZE")
    'TILE_SIZE'
    """
    return name.rpartition(".")[2]


def like_constants(name: str, other: str) -> bool:
    """Return whether two constants are of one thing, such as the size of a head and that of its values.

    >>> like_constants("tiling.HEAD_SIZE", "HEAD_SIZE_V"), like_constants("tiling.HEAD_SIZE", "tiling.TILE_SIZE")
    (True, False)
    """
    own, others = (set(short_name(each).lower().split("_")) - _OF_ANY for each in (name, other))
    return bool(own & others)


_OF_ANY: Final = frozenset({"size", "block", "num", "padded", "use", "per"})
"""Words in names of constants that do not say of what they are."""


def _parts(name: str) -> set[str]:
    parts = name.lower().replace(".", "_").replace("%", "").replace("(", "_").replace(")", "_").split("_")
    return {part.rstrip("s") for part in parts if len(part) > 2} - {"ptr", "load"}


def other_numbers(number: float) -> Iterator[tuple[float, int]]:
    """Yield numbers that may be meant, with their ranks."""
    near: list[tuple[float, int]]
    if number.__class__ is float:
        near = [(0.0, 1), (1.0, 1), (-math.inf, 1), (number * 2, 2), (number / 2, 2), (-number, 2)]
    else:
        near = [(number + 1, 0), (number - 1, 0), (0, 1), (1, 1), (2, 2), (number * 2, 2), (number // 2, 2)]
    seen = {number}
    for other, rank in near:
        if other not in seen and not math.isnan(other):
            seen.add(other)
            yield other, rank
