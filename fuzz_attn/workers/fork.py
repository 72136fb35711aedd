"""Forks of a process, one or a pool of them, and descendants: what a target starts, found and killed.

A child that a target starts may leave the process group (``setsid``) and its parent (a double fork), so that neither a
signal to the group nor the death of the parent reaches it. So processes of a run adopt orphans: on Linux, what loses
its parent below one of them becomes its child, and can be killed there. The children of a process are read from
``/proc``; where there is none, only the process group is killed.

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
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuzz_attn.errors import ProcessError
from fuzz_attn.workers.messages import CONNECTION_LOST, Died

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


SLOW_SECONDS: Final = 10.0
"""A fork that takes longer is set aside: it goes on with what is left of the processor, and others take its place."""
SLOW_NICE: Final = 19
STUCK_SECONDS: Final = 600.0
"""After so long a fork is killed; its work has no result then."""
_PIPE_BYTES: Final = 65536


@dataclass
class _Fork:
    process: int
    number: int
    started: float
    awaited: bool
    aside: bool = False
    received: bytes = b""


class Forks:
    """Forks that each do one piece of work, known by its number, and send its result as bytes."""

    def __init__(self, most_aside: int) -> None:
        self._most_aside = most_aside
        self._forks: dict[int, _Fork] = {}
        """The forks by the pipe that their results come through."""

    @property
    def at_work(self) -> int:
        """The number of forks that are not set aside."""
        return sum(not fork.aside for fork in self._forks.values())

    def start(self, number: int, work: Callable[[], bytes], nice: int = 0, *, awaited: bool = False) -> None:
        """Do a piece of work in a fork; one that others wait for is not set aside."""
        source, sink = os.pipe()
        process = os.fork()
        if not process:
            _work(work, sink, nice)
        os.close(sink)
        self._forks[source] = _Fork(process, number, time.monotonic(), awaited)

    def ended(self, seconds: float) -> Iterator[tuple[int, bytes]]:
        """Wait up to some seconds for forks that end, and yield their numbers and results; empty for one that died."""
        self._kill_stuck()
        self._set_slow_aside()
        for source in select.select(list(self._forks), [], [], seconds)[0]:
            received = os.read(source, _PIPE_BYTES)
            self._forks[source].received += received
            if not received:
                yield self._result(source)

    def kill(self) -> None:
        """End all forks; their work has no result."""
        for fork in self._forks.values():
            os.kill(fork.process, signal.SIGKILL)
        for source in list(self._forks):
            self._result(source)

    def _result(self, source: int) -> tuple[int, bytes]:
        fork = self._forks.pop(source)
        os.close(source)
        status = os.waitpid(fork.process, 0)[1]
        return fork.number, b"" if status else fork.received

    def _kill_stuck(self) -> None:
        for fork in self._forks.values():
            if time.monotonic() - fork.started > STUCK_SECONDS:
                os.kill(fork.process, signal.SIGKILL)

    def _set_slow_aside(self) -> None:
        """Let slow forks go on at the lowest priority, with the compilers that they have started."""
        forks = sorted(self._forks.values(), key=lambda fork: fork.started)
        room = self._most_aside - sum(fork.aside for fork in forks)
        may_wait = [fork for fork in forks if not fork.aside and not fork.awaited]
        slow = [fork for fork in may_wait if time.monotonic() - fork.started > SLOW_SECONDS]
        for fork in slow[: max(0, room)]:
            fork.aside = True
            for process in (fork.process, *children_of(fork.process)):
                with contextlib.suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, process, SLOW_NICE)


def _work(work: Callable[[], bytes], sink: int, nice: int) -> None:
    """Work and send the result, in the fork, which ends then; its status is 1 where the work raised."""
    status = 1
    try:
        die_with_parent()
        os.nice(nice)
        result = memoryview(work())
        while result:
            result = result[os.write(sink, result) :]
        status = 0
    except Exception:  # noqa: BLE001 - the process ends either way
        traceback.print_exc()  # into what the compile stage prints
    finally:
        with contextlib.suppress(OSError):
            os.close(sink)
        os._exit(status)
