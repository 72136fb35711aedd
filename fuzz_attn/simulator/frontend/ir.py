"""The IR as a tree: functions, blocks, operations, and values with types."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

from fuzz_attn.simulator.findings import UNKNOWN_LOCATION, Location
from fuzz_attn.simulator.frontend.attributes import Attributes
from fuzz_attn.simulator.frontend.locations import Locations

_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*?)(?:, #.*)?>$")
_POINTER = re.compile(r"!tt\.ptr<(.*?)(?:, \d+)?>$")
_INTEGERS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}
FLOATS = frozenset({"f64", "f32", "bf16", "f16", "f8E4M3FN", "f8E5M2"})


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value: its element (`i32`, `bf16`, ...), the tile's shape, and whether it points at elements."""

    element: str
    shape: tuple[int, ...] = ()
    pointer: bool = False

    @property
    def is_float(self) -> bool:
        """Whether it is a float or a tile of floats."""
        return not self.pointer and self.element in FLOATS

    @property
    def bits(self) -> int:
        """Width of an integer element."""
        return _INTEGERS[self.element]


@functools.lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    """Return the `Type` of its text, such as `tensor<16x!tt.ptr<bf16>>`; an unknown type is its own element."""
    tensor = _TENSOR.match(text)
    if tensor:
        inner = parse_type(tensor.group(2))
        shape = tuple(int(size) for size in tensor.group(1).split("x")[:-1])
        return Type(inner.element, shape, inner.pointer)
    pointer = _POINTER.match(text)
    if pointer:
        return Type(pointer.group(1), (), True)
    return Type(text)


class Value:
    """One SSA value; two values are the same only if they are the same object."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type_: Type) -> None:
        self.name = name
        self.type = type_

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(slots=True, eq=False)
class Operation:
    """One operation: name, operands, results, the text that holds its attributes, and nested regions.

    ``inlined`` is its whole location as the IR writes it, with what reads it: a function that was called there leaves
    its own lines.
    """

    name: str
    operands: list[Value]
    results: list[Value] = field(default_factory=list)
    text: str = ""
    regions: list[list[Block]] = field(default_factory=list)
    successors: list[tuple[str, list[Value]]] = field(default_factory=list)
    location: Location = UNKNOWN_LOCATION
    inlined: tuple[Locations, str] | None = None

    @property
    def callers(self) -> tuple[Location, ...]:
        """The lines of the calls that lead to the operation's own line, the innermost first."""
        return () if self.inlined is None else self.inlined[0].chain(self.inlined[1])[1:]

    @property
    def attributes(self) -> Attributes:
        """What the text says beside operands and types."""
        return Attributes(self.text)


@dataclass(slots=True, eq=False)
class Block:
    """A straight sequence of operations, with the arguments that it takes."""

    label: str
    arguments: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Function:
    """A kernel: name, parameters by their Python names, and its blocks."""

    name: str
    parameters: list[Value]
    blocks: list[Block]
