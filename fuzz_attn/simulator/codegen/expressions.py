"""Expressions of the generated code: a small typed tree that knows its text and the variables that it reads."""

# ruff: noqa: D102
# Reason: what overrides a method of Expression has that method's docstring.

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

_CONDITIONAL, _OR, _AND, _COMPARISON, _OR_BITS, _XOR_BITS, _AND_BITS, _SHIFT, _SUM, _PRODUCT, _UNARY, _ATOM = range(12)
_PRECEDENCE = {
    "or": _OR,
    "and": _AND,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "is", "is not"), _COMPARISON),
    "|": _OR_BITS,
    "^": _XOR_BITS,
    "&": _AND_BITS,
    **dict.fromkeys(("<<", ">>"), _SHIFT),
    **dict.fromkeys("+-", _SUM),
    **dict.fromkeys("*/", _PRODUCT),
}

Literal: TypeAlias = int | float | bool


class Expression:
    """One expression, never changed once it is made. Equal expressions have equal text.

    The classes are hashable but not frozen: making frozen ones takes 7% of the time of a kernel's generation.
    """

    __slots__ = ()
    precedence: ClassVar[int] = _ATOM

    @property
    def text(self) -> str:
        """Its Python source."""
        raise NotImplementedError

    def add_names(self, names: list[str]) -> None:
        """Add the variables that it reads to a list, each as often as it reads it."""

    def within(self, precedence: int) -> str:
        """Return its text as an operand of an operator, in parentheses where it binds less than `precedence`."""
        return self.text if self.precedence >= precedence else f"({self.text})"


@dataclass(unsafe_hash=True, slots=True)
class Name(Expression):
    """A variable, a parameter, or a builtin of the generated code."""

    name: str

    @property
    def text(self) -> str:
        return self.name

    def add_names(self, names: list[str]) -> None:
        names.append(self.name)


@dataclass(unsafe_hash=True, slots=True)
class Constant(Expression):
    """A number, string, tuple of numbers, None, or the like: compared by text, since 0.0 equals -0.0 in Python."""

    written: str

    @property
    def text(self) -> str:
        return self.written


@dataclass(unsafe_hash=True, slots=True)
class Attribute(Expression):
    """`of.name`."""

    of: Expression
    name: str

    @property
    def text(self) -> str:
        return f"{self.of.within(_ATOM)}.{self.name}"

    def add_names(self, names: list[str]) -> None:
        self.of.add_names(names)


@dataclass(unsafe_hash=True, slots=True)
class Call(Expression):
    """`function(*arguments, **keywords)`."""

    function: Expression
    arguments: tuple[Expression, ...]
    keywords: tuple[tuple[str, Expression], ...] = ()

    @property
    def text(self) -> str:
        given = [argument.text for argument in self.arguments]
        given += [f"{name}={value.text}" for name, value in self.keywords]
        return f"{self.function.within(_ATOM)}({', '.join(given)})"

    def add_names(self, names: list[str]) -> None:
        self.function.add_names(names)
        for argument in self.arguments:
            argument.add_names(names)
        for _, value in self.keywords:
            value.add_names(names)


@dataclass(unsafe_hash=True, slots=True)
class Index(Expression):
    """`of[items]`."""

    of: Expression
    items: tuple[Expression, ...]

    @property
    def text(self) -> str:
        return f"{self.of.within(_ATOM)}[{', '.join([item.text for item in self.items])}]"

    def add_names(self, names: list[str]) -> None:
        self.of.add_names(names)
        for item in self.items:
            item.add_names(names)


@dataclass(unsafe_hash=True, slots=True)
class From(Expression):
    """`start:`, the index of all elements from `start` on."""

    start: Expression

    @property
    def text(self) -> str:
        return f"{self.start.text}:"

    def add_names(self, names: list[str]) -> None:
        self.start.add_names(names)


@dataclass(unsafe_hash=True, slots=True)
class Unary(Expression):
    """`-operand`, `~operand` or `not operand`."""

    sign: str
    operand: Expression
    precedence: ClassVar[int] = _UNARY

    @property
    def text(self) -> str:
        return f"{self.sign}{self.operand.within(_UNARY)}"

    def add_names(self, names: list[str]) -> None:
        self.operand.add_names(names)


@dataclass(unsafe_hash=True, slots=True)
class Binary(Expression):
    """`left sign right`."""

    sign: str
    left: Expression
    right: Expression

    @property
    def precedence(self) -> int:  # type: ignore[override]  # it depends on the sign
        return _PRECEDENCE[self.sign]

    @property
    def text(self) -> str:
        own = _PRECEDENCE[self.sign]
        left = self.left.within(own + (own == _COMPARISON))
        return f"{left} {self.sign} {self.right.within(own + 1)}"

    def add_names(self, names: list[str]) -> None:
        self.left.add_names(names)
        self.right.add_names(names)


@dataclass(unsafe_hash=True, slots=True)
class Conditional(Expression):
    """`value if test else other`."""

    value: Expression
    test: Expression
    other: Expression
    precedence: ClassVar[int] = _CONDITIONAL

    @property
    def text(self) -> str:
        return f"{self.value.within(_OR)} if {self.test.within(_OR)} else {self.other.text}"

    def add_names(self, names: list[str]) -> None:
        self.value.add_names(names)
        self.test.add_names(names)
        self.other.add_names(names)


@dataclass(unsafe_hash=True, slots=True)
class Group(Expression):
    """`(items)`, a tuple."""

    items: tuple[Expression, ...]

    @property
    def text(self) -> str:
        inner = ", ".join([item.text for item in self.items])
        return f"({inner},)" if len(self.items) == 1 else f"({inner})"

    def add_names(self, names: list[str]) -> None:
        for item in self.items:
            item.add_names(names)


@dataclass(unsafe_hash=True, slots=True)
class ListOf(Expression):
    """`[items]`, a list."""

    items: tuple[Expression, ...] = ()

    @property
    def text(self) -> str:
        return f"[{', '.join([item.text for item in self.items])}]"

    def add_names(self, names: list[str]) -> None:
        for item in self.items:
            item.add_names(names)


@dataclass(unsafe_hash=True, slots=True)
class Starred(Expression):
    """`*of`, the items of a sequence as arguments."""

    of: Expression

    @property
    def text(self) -> str:
        return f"*{self.of.text}"

    def add_names(self, names: list[str]) -> None:
        self.of.add_names(names)


Builder: TypeAlias = Callable[..., Expression]
"""Makes an expression from those of its operands."""

NUMPY = Name("np")
RUN = Name("run")
NONE = Constant("None")
ALL = Constant(":")
ELLIPSIS = Constant("...")


def constant(value: object) -> Constant:
    """Return a number, string, tuple or None as an expression."""
    return Constant(repr(value))


def number(value: Literal) -> Expression:
    """Return a number as an expression; infinities and NaN are names of the generated module."""
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return Constant("nan")
        return Constant("inf") if value > 0 else Constant("(-inf)")
    written = repr(value)
    return Constant(written if value >= 0 and math.copysign(1, value) > 0 else f"({written})")


def call(function: str, *arguments: Expression, **keywords: Expression) -> Call:
    """Return a call of a builtin of the generated code."""
    return Call(Name(function), arguments, tuple(keywords.items()))


def numpy(function: str, *arguments: Expression, **keywords: Expression) -> Call:
    """Return a call of a function of numpy."""
    return Call(Attribute(NUMPY, function), arguments, tuple(keywords.items()))


def method(of: Expression, name: str, *arguments: Expression) -> Call:
    """Return a call of a method."""
    return Call(Attribute(of, name), arguments)


def index(of: Expression, *items: Expression) -> Index:
    """Return `of[items]`."""
    return Index(of, items)


def all_of(tests: list[Expression]) -> Expression:
    """Return the conjunction of tests."""
    result = tests[0]
    for test in tests[1:]:
        result = Binary("and", result, test)
    return result


def joined(sign: str, operands: list[Expression]) -> Expression:
    """Return operands combined from left to right by one operator."""
    result = operands[0]
    for operand in operands[1:]:
        result = Binary(sign, result, operand)
    return result


def dtype(element: str) -> Index:
    """Return the numpy type that holds an element of the IR."""
    return index(Name("DTYPES"), constant(element))


def cast(value: Expression, element: str) -> Call:
    """Return an array as elements of another integer or container type."""
    return method(value, "astype", dtype(element))


def item(value: Expression) -> Call:
    """Return the one element of an array as a number of Python's."""
    return method(value, "item")


def size(value: Expression) -> Attribute:
    """Return the number of elements of an array."""
    return Attribute(value, "size")


def infix(sign: str) -> Builder:
    """Return the builder of an operator of two operands."""
    return lambda left, right: Binary(sign, left, right)


def prefix(sign: str) -> Builder:
    """Return the builder of an operator of one operand."""
    return lambda operand: Unary(sign, operand)


def function(name: str, *more: Expression) -> Builder:
    """Return the builder of a call of a builtin, with more arguments behind the operands."""
    return lambda *operands: call(name, *operands, *more)


def numpy_function(name: str) -> Builder:
    """Return the builder of a call of a function of numpy."""
    return lambda *operands: numpy(name, *operands)


def combines_two_arrays(expression: Expression, operands: list[Expression]) -> bool:
    """Return whether an expression is one of numpy's own operations on just these two operands."""
    if isinstance(expression, Binary):
        return operands == [expression.left, expression.right]
    if isinstance(expression, Call) and isinstance(expression.function, Attribute):
        return expression.function.of is NUMPY and list(expression.arguments) == operands and len(operands) == 2
    return False
