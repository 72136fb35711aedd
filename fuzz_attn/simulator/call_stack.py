"""Room on Python's call stack for the recursion that makes a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_BYTES: Final = 2**18


def with_room(
    function: Callable[_Arguments, _Result], *arguments: _Arguments.args, **keywords: _Arguments.kwargs
) -> _Result:
    """Return the result of a call whose Python frames share one piece of `_BYTES` of the stack.

    CPython takes its stack from the system in pieces of 16 kB and returns each as soon as it is empty. Triton's front
    end walks a syntax tree by a deep recursion. It leaves and enters a piece again and again, with page faults each
    time. A piece is at least as large as the frame that it is made for, so a function that declares a large frame
    makes room for all that it calls.

    Without this, the first launch of the unified kernel (2nd case of tests/benchmarks/bench_simulator.py) takes 1.10
    times the CPU time, with 813 page faults instead of 63. How much it is depends on the depth of the call.
    """
    return function(*arguments, **keywords)


with_room.__code__ = with_room.__code__.replace(co_stacksize=_BYTES // 8)
