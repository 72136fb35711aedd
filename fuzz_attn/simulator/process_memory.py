"""Process memory: what Python and the C library do with it while kernels are lowered and run."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Numbers of `mallopt`'s options in glibc."""

_KEPT_BYTES: Final = 64 * 2**20
_LARGE_BYTES: Final = 16 * 2**20


@functools.lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Let this process keep up to 64 MiB of what it frees; return whether its C library can.

    A launch makes hundreds of arrays that live for microseconds. Without this, glibc may return their pages to the
    system and get new ones, zeroed, with a page fault each. This can cost more than all of the arithmetic: a warm
    launch of 5 sequences with 16 heads of 128 (the last case of tests/benchmarks/bench_simulator.py) has 3944 page
    faults and takes 24.8 ms of CPU instead of 12.9. The small cases of a campaign have 8 to 64 faults each instead of
    3. Arrays of 16 MiB and more are returned at once.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))


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
    times the CPU time, with 813 page faults instead of 63. How much it is depends on the depth of the call. Of a cold
    campaign it saves 6 % of a whole case (median of 9 pairs in turn, 3 families, rounds of 10 keys and 60 cases).
    """
    return function(*arguments, **keywords)


with_room.__code__ = with_room.__code__.replace(co_stacksize=_BYTES // 8)


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector until the context is left; leave it as it is where it does not run.

    Triton's front end makes tens of thousands of objects for a kernel, which the collector would look at many times.
    Without this a program takes 1.08 times the time (30 programs each of the unified and the paged family), and more
    than half of the first minutes of a campaign goes to programs: it saves 4 % of a whole case of a cold campaign.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
