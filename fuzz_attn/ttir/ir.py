"""The IR of a kernel as a tree: functions, blocks and operations, their types, attributes and places in the source."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a kernel's source; line 0 means that the IR names none."""

    file: str = "<unknown>"
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


UNKNOWN_LOCATION = Location()


_KEYWORD: Final = re.compile(r"\s*(\w+)")
_ATTRIBUTE: Final = re.compile(r'(\w+) = ("[^"]*"|array<[^>]*>|[^\s,}]+)')
_STRING: Final = re.compile(r'"([^"]*)"')
_CONSTANT: Final = re.compile(r"\s*(?:\{[^}]*\}\s*)?(?:dense<(.*?)>|(\S+))(?: : |$)")
_HINT: Final = re.compile(r"tt\.(divisibility|contiguity|constancy)(?:_arg(\d+))? = dense<\[?([^\]>]*)\]?>")
_INTEGER: Final = re.compile(r"-?\d+")
_FP8: Final = {"f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2}
_FLOAT_BITS: Final = {"f64": ("<Q", "<d"), "f32": ("<I", "<f"), "f16": ("<H", "<e")}


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of one operation, read from `text`: what stands behind its name."""

    text: str

    @property
    def keyword(self) -> str:
        """The first word: the predicate of a comparison, the axis of a program id, the kind of an atomic."""
        return _first(_KEYWORD.match(self.text))

    @property
    def string(self) -> str:
        """The first text in quotes."""
        return _first(_STRING.search(self.text))

    @property
    def constant(self) -> str:
        """The text of a constant's value."""
        return _first(_CONSTANT.match(self.text))

    @property
    def named(self) -> Mapping[str, str]:
        """The text of each attribute that is written `name = value`."""
        return {name: value.strip('"') for name, value in _ATTRIBUTE.findall(self.text)}

    def hints(self, rank: int, argument: int | None = None) -> Hints | None:
        """Return the hints on a result with so many axes, or on an argument of the operation's block; None for none."""
        wanted = "" if argument is None else str(argument)
        found: dict[str, tuple[int, ...]] = {}
        for kind, number, values in _HINT.findall(self.text):
            if number == wanted:
                sizes = tuple(int(value) for value in values.split(",") if value.strip())
                found[kind] = sizes * max(rank, 1) if len(sizes) == 1 else sizes
        return Hints(**found) if found else None

    def integer(self, name: str, default: int = 0) -> int:
        """Return a named integer."""
        return int(self.named.get(name, default))

    def integers(self, name: str) -> list[int]:
        """Return a named array of integers, such as `array<i32: 1, 0>`; an absent one is empty."""
        return [int(found) for found in _INTEGER.findall(self.named.get(name, "").partition(":")[2])]


@dataclass(frozen=True, slots=True)
class Hints:
    """What a kernel promises the compiler of a value, a number for each axis; empty where it promises nothing.

    They come from `tl.multiple_of`, `tl.max_contiguous` and `tl.max_constancy`.
    """

    divisibility: tuple[int, ...] = ()
    contiguity: tuple[int, ...] = ()
    constancy: tuple[int, ...] = ()


def _first(match: re.Match[str] | None) -> str:
    return next(filter(None, match.groups()), "") if match else ""


def parse_literal(text: str, element: str) -> int | float | bool | None:
    """Return the number written `text` in the IR, or None if it is not one number."""
    if text in ("true", "false"):
        return text == "true"
    try:
        if element.startswith("i"):
            return int(text)
        return _parse_bits(int(text, 16), element) if text.startswith("0x") else float(text)
    except ValueError:
        return None


def _parse_bits(bits: int, element: str) -> float:
    if element in _FLOAT_BITS:
        packed, unpacked = _FLOAT_BITS[element]
        return float(struct.unpack(unpacked, struct.pack(packed, bits))[0])
    if element == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    if element in _FP8:
        return float(np.uint8(bits).view(_FP8[element]))
    raise ValueError(f"{bits=} of {element=}")


_FILE = re.compile(r'^"(.*)":(\d+):\d+(?: to .*)?$')
_NAME_OF = re.compile(r'^"([^"]*)"\(')
_NAMED = re.compile(r'^"[^"]*"\((.*)\)$')
_LIBRARY = ("/triton/language/", "<unknown>")


class Locations:
    """The location aliases of a module. A location in Triton's own library counts as that of its caller."""

    def __init__(self, text: str) -> None:
        defined = (line.partition(" = loc(") for line in text.splitlines() if line.startswith("#loc"))
        self._aliases = {name: location[:-1] for name, _, location in defined}
        self._known: dict[str, Location] = {}
        self._chains: dict[str, tuple[Location, ...]] = {}
        self._names: dict[str, str] = {}

    def resolve(self, text: str) -> Location:
        """Return the source line of a location, given what stands between the brackets of `loc(...)`."""
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._resolve(text)
        return known

    def chain(self, text: str) -> tuple[Location, ...]:
        """Return the source line of a location and those of the calls around it, the innermost first."""
        known = self._chains.get(text)
        if known is None:
            known = self._chains[text] = self._chain(text)
        return known

    def _chain(self, text: str) -> tuple[Location, ...]:
        if text.startswith("#"):
            target = self._aliases.get(text)
            return () if target is None else self.chain(target)
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            return (*self.chain(callee), *self.chain(caller))
        place = self.resolve(text)
        return () if any(part in place.file for part in _LIBRARY) else (place,)

    def name(self, text: str) -> str:
        """Return the name that the source gives what is computed at a location; empty for a part of an expression."""
        known = self._names.get(text)
        if known is None:
            known = self._names[text] = self._name(text)
        return known

    def _name(self, text: str) -> str:
        if text.startswith("#"):
            target = self._aliases.get(text)
            return "" if target is None else self.name(target)
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            return (
                self.name(caller) if any(part in self.resolve(callee).file for part in _LIBRARY) else self.name(callee)
            )
        named = _NAME_OF.match(text)
        return named.group(1) if named and not _FILE.match(text) else ""

    def _resolve(self, text: str) -> Location:
        if text.startswith("#"):
            target = self._aliases.get(text)
            return UNKNOWN_LOCATION if target is None else self.resolve(target)
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            inner = self.resolve(callee)
            return self.resolve(caller) if any(part in inner.file for part in _LIBRARY) else inner
        file = _FILE.match(text)
        if file:
            return Location(file.group(1), int(file.group(2)))
        named = _NAMED.match(text)
        return self.resolve(named.group(1)) if named else UNKNOWN_LOCATION


def _split_callsite(text: str) -> tuple[str, str]:
    if "(" not in text:
        callee, _, caller = text.partition(" at ")
        return callee, caller or "unknown"
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and text.startswith(" at ", position):
            return text[:position], text[position + 4 :]
    return text, "unknown"


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
    def variable(self) -> str:
        """The name that the source gives the result, or what the result is a part of; empty without one."""
        return "" if self.inlined is None else self.inlined[0].name(self.inlined[1])

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
