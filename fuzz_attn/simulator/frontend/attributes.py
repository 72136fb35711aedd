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
_CONSTANT: Final = re.compile(r"\s*(?:dense<(.*?)>|(\S+))(?: : |$)")
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

    def integer(self, name: str, default: int = 0) -> int:
        """Return a named integer."""
        return int(self.named.get(name, default))

    def integers(self, name: str) -> list[int]:
        """Return a named array of integers, such as `array<i32: 1, 0>`; an absent one is empty."""
        return [int(found) for found in _INTEGER.findall(self.named.get(name, "").partition(":")[2])]


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
