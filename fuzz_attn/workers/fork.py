"""Forks of a worker process: one does the work, while its parent watches how much memory it uses.

The parent kills a fork that uses more resident memory than its limit. A limit of the kernel's (``RLIMIT_AS``,
``RLIMIT_DATA``) would count addresses, and cases with large offsets reserve tens of gigabytes of addresses without
memory. The watch needs Linux 5.3; elsewhere there is no limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from fuzz_attn.errors import ProcessError
from fuzz_attn.workers.descendants import adopt_orphans, children_of, end_children, reap_orphan
from fuzz_attn.workers.messages import CONNECTION_LOST, Died

NO_MORE_MESSAGES: Final = 113
"""Exit status of a fork whose parent closed the connection."""

EXCEEDED: Final = "exceeded its memory limit"
"""What a fork did that was killed for that, in words."""
WATCH_MILLISECONDS: Final = 50
"""A target can use this much time beyond its limit: about 100 MB at the speed of touching new memory."""

_PR_SET_PDEATHSIG: Final = 1


def run_in_fork(work: Callable[[], None], memory: int) -> Died:
    """Do the work in a fork of this process, and return how it ended; ``memory`` is its limit in bytes, 0 for none.

    What the work has started ends with it. Raises :class:`ProcessError` where the system allows no other process.
    """
    parent = os.getpid()
    adopt_orphans()
    others = children_of(parent)
    try:
        child = os.fork()
    except OSError as error:
        raise ProcessError(f"a worker cannot fork: {error.strerror}") from error
    if not child:
        die_with_parent()
        if os.getppid() == parent:
            _do(work)
        os._exit(NO_MORE_MESSAGES)
    exceeded = _watch(child, memory, {*others, child})
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end_children(others)
    return Died(code, f"{EXCEEDED} of {in_words(memory)}" if exceeded else "")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel signal this process when its parent ends: a hanging target would otherwise outlive it.

    With the number 0 it does so no more.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def in_words(size: int) -> str:
    """Return a size in bytes in the largest unit that keeps it exact, for example ``4 GiB``."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power} {unit}"
    return f"{size} bytes"


def _do(work: Callable[[], None]) -> None:
    """Do the work; an exception ends the process here, because the caller's frames belong to the parent."""
    try:
        work()
    except (BrokenPipeError, ConnectionResetError):
        return  # the parent has ended
    except OSError as error:
        _end(error, CONNECTION_LOST)
    except BaseException as error:  # noqa: BLE001 - a target's signal handler may raise anything, at any time
        _end(error, 1)


def _end(error: BaseException, code: int) -> None:
    with contextlib.suppress(BaseException):
        traceback.print_exception(error)
        sys.stderr.flush()
    os._exit(code)


def _watch(child: int, memory: int, kept: Collection[int]) -> bool:
    """Wait until a child ends; return whether it was killed because it exceeded its memory.

    Meanwhile adopted children that end are forgotten, but none of the ``kept`` ones.
    """
    try:
        descriptor = os.pidfd_open(child)
    except (AttributeError, OSError):
        return False  # an older kernel or another system
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not poll.poll(WATCH_MILLISECONDS):
            reap_orphan(kept)
            if memory and _resident_bytes(child) > memory:
                os.kill(child, signal.SIGKILL)
                return True
    finally:
        os.close(descriptor)
    return False


def _resident_bytes(process: int) -> int:
    """Return the memory that a process uses now; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()
