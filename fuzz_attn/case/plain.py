"""Plain data: the base of every frozen structure that goes into a file or a message."""

import hashlib
from functools import cache
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**20)]
Window: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 2)]
"""Keys, the row's own among them; 0 means no window. One more still fits into an int32, which some conventions add."""
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=2**20)]
Whole: TypeAlias = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""A whole number that every float can hold. A file may have a number of a thousand digits."""
Seconds: TypeAlias = Annotated[float, Meta(ge=-1e11, le=1e11)]
"""A time; since 1970, one before the year 5000."""
FileName: TypeAlias = Annotated[str, Meta(pattern=r"^[\w+][\w.+-]*\Z", max_length=255)]
"""A name of a file or a folder, which leads to no other folder. It is checked where a file or a message is read."""
Finite: TypeAlias = Annotated[float, Meta(ge=-1e30, le=1e30)]

LONGEST_NAME: Final = 120
"""Bytes of a name of a file or folder: systems allow 255, and some names get an ending."""


def shortened(name: str) -> str:
    """Return a name of a file as it is, or its beginning and a digest of all of it where it is too long."""
    if len(name.encode(errors="replace")) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:16]
    kept = name.encode(errors="replace")[: LONGEST_NAME - len(digest) - 1].decode(errors="ignore")
    return f"{kept}-{digest}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shortest(number: float) -> str:
    """Return the shortest text that reads back as the number, without a trailing ``.0``."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


class Plain(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, repr_omit_defaults=True):
    """Frozen, hashable data that refuses unknown fields. JSON and ``repr`` leave out defaults, so they stay short.

    Equal values have equal JSON: -0.0 where the default is 0.0 becomes the default, and so does 1 for 1.0.
    """

    def __post_init__(self) -> None:
        """Replace each field that equals its default by the default itself: msgspec compares them by identity."""
        for name, default in _defaults_of(type(self)):
            value = getattr(self, name)
            if value is not default and value == default:
                force_setattr(self, name, default)


@cache
def _defaults_of(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """Return the name and the default of each field that has one."""
    defaults = kind.__struct_defaults__
    return tuple(zip(kind.__struct_fields__[-len(defaults) :], defaults, strict=True)) if defaults else ()
