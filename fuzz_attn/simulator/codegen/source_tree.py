"""The generated code as a tree: typed expressions that know their text, and statements that know what they need."""

# ruff: noqa: D102
# Reason: what overrides a method of Expression has that method's docstring.

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Location

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


# ruff: noqa: D102
# Reason: what overrides a method of Statement has that method's docstring.


@dataclass(frozen=True, slots=True)
class Origin:
    """What a statement was generated for: the name of an operation, and its line in the kernel."""

    operation: str = ""
    location: Location = UNKNOWN_LOCATION

    def __str__(self) -> str:
        return f"{self.operation} at {self.location}"


NO_ORIGIN = Origin()


Line: TypeAlias = "tuple[str, list[Statement] | None]"
"""The source of a line, and the block below it if it opens one."""


@dataclass(slots=True, eq=False)
class Statement:
    """One statement, with those nested in it."""

    origin: Origin = field(default=NO_ORIGIN, kw_only=True)

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The expressions of the statement's own line, targets of assignments included."""
        return ()

    @property
    def blocks(self) -> tuple[list[Statement], ...]:
        """The blocks of nested statements, in order."""
        return ()

    def lines(self) -> Iterator[Line]:
        """Yield each line of the statement, with the block that it opens, if it opens one."""
        raise NotImplementedError

    def add_names(self, names: list[str]) -> None:
        """Add the variables of the statement's own line to a list, each as often as it occurs."""
        for expression in self.expressions:
            expression.add_names(names)

    @property
    def result(self) -> str | None:
        """The one variable that is all that the statement is for, or None if the statement does more."""
        return None


@dataclass(slots=True, eq=False)
class Assign(Statement):
    """`target = value`. With an effect it stays, also where nothing reads the target."""

    target: Name | Group
    value: Expression
    effect: bool = False

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return (self.target, self.value)

    @property
    def result(self) -> str | None:
        return self.target.name if isinstance(self.target, Name) and not self.effect else None

    def lines(self) -> Iterator[Line]:
        yield f"{self.target.text} = {self.value.text}", None


@dataclass(slots=True, eq=False)
class Do(Statement):
    """A call for its effect: it reports, records or changes memory."""

    call: Expression

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return (self.call,)

    def lines(self) -> Iterator[Line]:
        yield self.call.text, None


@dataclass(slots=True, eq=False)
class If(Statement):
    """`if test: ... else: ...`."""

    test: Expression
    body: list[Statement]
    other: list[Statement] = field(default_factory=list)

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return (self.test,)

    @property
    def blocks(self) -> tuple[list[Statement], ...]:
        return (self.body, self.other)

    def lines(self) -> Iterator[Line]:
        yield f"if {self.test.text}:", self.body
        if self.other:
            yield "else:", self.other


@dataclass(slots=True, eq=False)
class For(Statement):
    """`for counter in values: ...`."""

    counter: Name
    values: Expression
    body: list[Statement]

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return (self.counter, self.values)

    @property
    def blocks(self) -> tuple[list[Statement], ...]:
        return (self.body,)

    def lines(self) -> Iterator[Line]:
        yield f"for {self.counter.text} in {self.values.text}:", self.body


@dataclass(slots=True, eq=False)
class Forever(Statement):
    """`while True: ...`, left by a `Break`."""

    body: list[Statement]

    @property
    def blocks(self) -> tuple[list[Statement], ...]:
        return (self.body,)

    def lines(self) -> Iterator[Line]:
        yield "while True:", self.body


@dataclass(slots=True, eq=False)
class Break(Statement):
    """`break`."""

    def lines(self) -> Iterator[Line]:
        yield "break", None


@dataclass(slots=True, eq=False)
class Return(Statement):
    """`return value`."""

    value: Expression

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return (self.value,)

    def lines(self) -> Iterator[Line]:
        yield f"return {self.value.text}", None


@dataclass(slots=True, eq=False)
class Define(Statement):
    """`def name(parameters): ...`."""

    name: Name
    parameters: tuple[Name, ...]
    body: list[Statement]

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return (self.name, *self.parameters)

    @property
    def blocks(self) -> tuple[list[Statement], ...]:
        return (self.body,)

    def lines(self) -> Iterator[Line]:
        yield f"def {self.name.text}({', '.join([name.text for name in self.parameters])}):", self.body


def walk(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield statements with all that are nested in them."""
    for statement in statements:
        yield statement
        for block in statement.blocks:
            yield from walk(block)


def printed(statements: Iterable[Statement], indent: str = "") -> Iterator[tuple[str, Origin]]:
    """Yield the source of statements line by line, each line with its origin."""
    deeper = indent + "    "
    for statement in statements:
        for text, block in statement.lines():
            yield indent + text, statement.origin
            if block:
                yield from printed(block, deeper)
            elif block is not None:
                yield f"{deeper}pass", statement.origin


class Pruner:
    """Prunes the parts of a program, which run one after the other, the last part first."""

    def __init__(self) -> None:
        self._uses: Counter[str] = Counter()

    def pruned(self, part: list[Statement]) -> list[Statement]:
        """Return a part without statements whose result neither it nor a later part reads."""
        names: list[str] = []
        for statement in walk(part):
            statement.add_names(names)
        self._uses.update(names)
        return self._pruned(part)

    def _pruned(self, statements: list[Statement]) -> list[Statement]:
        """Return the block without unread results, the last statement first: what it reads may then be unread, too."""
        kept = []
        for statement in reversed(statements):
            if statement.result is not None and self._uses[statement.result] == 1:
                names: list[str] = []
                statement.add_names(names)
                self._uses.subtract(names)
                continue
            for block in reversed(statement.blocks):
                block[:] = self._pruned(block)
            kept.append(statement)
        return kept[::-1]

    def read_later(self, statements: Iterable[Statement]) -> list[str]:
        """Return the variables that statements define and the parts pruned so far read, in order."""
        defined = dict.fromkeys(statement.result for statement in statements)
        return [name for name in defined if name is not None and self._uses[name]]
