"""What the C library does with memory that a launch frees."""

from __future__ import annotations

import ctypes
import functools
from typing import Final

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
