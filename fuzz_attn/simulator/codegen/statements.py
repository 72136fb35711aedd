"""Statements of the generated code: what each defines and reads, where it comes from, and which ones are needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from fuzz_attn.simulator.codegen.expressions import Expression, Group, Name
from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Location

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
