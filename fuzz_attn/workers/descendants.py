"""Descendants: processes that a target starts, found and killed wherever they went.

A child that a target starts may leave the process group (``setsid``) and its parent (a double fork), so that neither a
signal to the group nor the death of the parent reaches it. So processes of a run adopt orphans: on Linux, what loses
its parent below one of them becomes its child, and can be killed there. The children of a process are read from
``/proc``; where there is none, only the process group is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

KILL_SECONDS: Final = 2.0
"""Killed processes are waited for so long: one that a driver holds may outlive its being killed."""
_PAUSE_SECONDS: Final = 0.002
_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> None:
    """Let what loses its parent below this process become its child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(process: int) -> frozenset[int]:
    """Return the children of a process, none where the system does not name them."""
    children: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(OSError):
                children.update(map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split()))
    return frozenset(children)


def end_children(kept: Collection[int] = ()) -> None:
    """Kill the children of this process but the ``kept`` ones, and what becomes its child by that."""
    limit, own = time.monotonic() + KILL_SECONDS, os.getpid()
    while (left := children_of(own).difference(kept)) and time.monotonic() < limit:
        for child in left:
            _kill(child)
        for child in left:
            reap(child)
        time.sleep(_PAUSE_SECONDS)


def reap(child: int) -> None:
    """Forget a child that has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def reap_orphan(kept: Collection[int]) -> None:
    """Forget one adopted child that has ended, if there is any: a target may start thousands."""
    with contextlib.suppress(ChildProcessError):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None and ended.si_pid not in kept:
            reap(ended.si_pid)


def kill_with_descendants(process: int) -> None:
    """Kill a process group by the number of its leader, and what is below the leader, which adopts orphans.

    The leader is stopped first, so that it starts no other process meanwhile.
    """
    _kill(process, signal.SIGSTOP)
    limit = time.monotonic() + KILL_SECONDS
    while (left := [child for child in children_of(process) if _runs(child)]) and time.monotonic() < limit:
        for child in left:
            _kill(child)
        time.sleep(_PAUSE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)


def _kill(process: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # a child may have changed its user
        os.kill(process, number)


def _runs(process: int) -> bool:
    """Return whether a process has not ended, although its parent may not know that yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False
