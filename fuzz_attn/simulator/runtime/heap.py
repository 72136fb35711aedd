"""What the C library does with memory that a launch gives back."""

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

    A launch makes hundreds of arrays that live for microseconds. glibc may give their pages back to the system
    whenever the last one goes, and take them again, zeroed, one page fault each, for the next: that can cost more than
    all of the arithmetic: without this, a warm launch of 5 sequences with 16 heads of 128 (the last case of
    tests/simulator/benchmark.py) has 3944 page faults and takes 24.8 ms of CPU instead of 12.9. In the small cases of a
    campaign there are 8 to 64 faults a case instead of 3. Arrays of 16 MiB and more still go back at once.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
