"""Room on Python's stack for a deep recursion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_BYTES: Final = 2**18


def with_room(
    function: Callable[_Arguments, _Result], *arguments: _Arguments.args, **keywords: _Arguments.kwargs
) -> _Result:
    """Return the result of a call under which Python frames find `_BYTES` of their stack in one piece.

    CPython takes its stack from the system in pieces of 16 kB and gives each back as soon as it is empty. A recursion
    that goes up and down over the end of a piece pays for that every time: milliseconds for one kernel, depending on
    how deep its launch happened to be. A piece for a frame that asks for more has the size of the next power of two.
    """
    return function(*arguments, **keywords)


with_room.__code__ = with_room.__code__.replace(co_stacksize=_BYTES // 8)
