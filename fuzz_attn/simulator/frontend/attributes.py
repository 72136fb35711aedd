"""Attributes of an operation: what its text says beside operands and types, parsed in this one place."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_KEYWORD: Final = re.compile(r"\s*(\w+)")
_NAMED: Final = re.compile(r'(\w+) = ("[^"]*"|array<[^>]*>|[^\s,}]+)')
_STRING: Final = re.compile(r'"([^"]*)"')
_CONSTANT: Final = re.compile(r"\s*(?:\{[^}]*\}\s*)?(?:dense<(.*?)>|(\S+))(?: : |$)")
_HINT: Final = re.compile(r"tt\.(divisibility|contiguity|constancy)(?:_arg(\d+))? = dense<\[?([^\]>]*)\]?>")
_INTEGER: Final = re.compile(r"-?\d+")
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
        return {name: value.strip('"') for name, value in _NAMED.findall(self.text)}

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
    raise ValueError(f"{bits=} of {element=}")
