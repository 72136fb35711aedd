"""The process of a fork server: ``python -P -m PROGRAM NUMBER``, of a listening socket.

The program calls :func:`serve` with what imports all that its forks need. A fork is then like a process that was
started by itself: it has no threads and no state of random numbers of the server. Only the seed of hashes is the same.

The server forks for each request, tells the requester the number of the process and later how it ended, and kills the
process when the requester ends. What a process leaves behind is killed too. The server ends when its standard input is
closed and its last fork has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import select
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from fuzz_attn.workers.descendants import adopt_orphans, end_children
from fuzz_attn.workers.fork import die_with_parent
from fuzz_attn.workers.fork_service import Request

LONGEST_REQUEST: Final = 2**20
REQUEST_SECONDS: Final = 5.0
"""A request has to follow its connection within this time."""
_CREDENTIALS: Final = struct.Struct("3i")


class _Order(NamedTuple):
    """A request, the descriptors that came with it, and one that tells when the requester ends."""

    request: Request
    connection: int
    output: int
    requester: int


@dataclass
class _Fork:
    """A process, with descriptors that tell when it ends, when its requester ends, and when it is released."""

    pid: int
    end_signal: int
    process: int
    requester: int
    line: int
    ended: bool = False
    released: bool = False


class ForkServer:
    """Serves a listening socket. Each descriptor that it waits for has a handler, and is open as long as that."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], str | None]] = {}
        self._forks: set[int] = set()
        """The numbers of the processes that have not been forgotten."""
        self._watch(sys.stdin.fileno(), self._stop)
        self._watch(listening.fileno(), self._accept)

    def serve(self) -> str | None:
        """Serve until the end. Returns in each fork as well, with the name of the module that it is to run."""
        while self._handlers:
            descriptor, _ = self._poll.poll()[0]  # one at a time: a handler may close the others, and open new ones
            module = self._handlers[descriptor]()
            if module is not None:
                return module
        return None

    def _watch(self, descriptor: int, handler: Callable[[], str | None]) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._handlers[descriptor]
        os.close(descriptor)

    def _stop(self) -> None:
        """Take no more requests."""
        path = Path(self._listening.getsockname())
        with contextlib.suppress(OSError):
            path.unlink()
            path.parent.rmdir()
        self._forget(self._listening.detach())
        self._forget(sys.stdin.fileno())

    def _accept(self) -> str | None:
        """Carry out a request. One that is not complete, or whose requester has ended, is dropped."""
        with ExitStack() as opened:
            line = opened.enter_context(self._listening.accept()[0])
            try:
                order = _received(line, opened)
                return self._fork(order, line.fileno())
            except (OSError, ValueError, msgspec.MsgspecError):
                return None

    def _fork(self, order: _Order, line: int) -> str | None:
        """Start a process; returns the name of its module there."""
        server = os.getpid()
        pid = os.fork()
        if not pid:
            for descriptor in self._handlers.keys() - {sys.stdin.fileno()}:
                os.close(descriptor)
            become(order.request, server, os.dup(order.connection), order.output)
            return order.request.module
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the new process does this too, because either may run first
        self._forks.add(pid)
        fork = _Fork(pid, order.request.end_signal, os.pidfd_open(pid), os.dup(order.requester), os.dup(line))
        self._watch(fork.process, partial(self._note_end, fork))
        self._watch(fork.requester, partial(self._release, fork))
        self._watch(fork.line, partial(self._release, fork))
        _send(line, pid)
        return None

    def _note_end(self, fork: _Fork) -> None:
        """Tell how a process ended. Its number stays its own until the requester knows."""
        result = os.waitid(os.P_PID, fork.pid, os.WEXITED | os.WNOWAIT)
        assert result is not None
        self._forget(fork.process)
        fork.ended = True
        _send(fork.line, result.si_status if result.si_code == os.CLD_EXITED else -result.si_status)
        if fork.released:
            self._reap(fork)
        end_children(self._forks)

    def _reap(self, fork: _Fork) -> None:
        """Give a process's number back to the system."""
        os.waitpid(fork.pid, 0)
        self._forks.remove(fork.pid)

    def _release(self, fork: _Fork) -> None:
        """Forget a process that has ended, and end one whose requester has gone."""
        self._forget(fork.requester)
        self._forget(fork.line)
        fork.released = True
        if fork.ended:
            self._reap(fork)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(fork.pid, fork.end_signal)


def _received(line: socket.socket, opened: ExitStack) -> _Order:
    """Return the order that a connection brings, with descriptors that are closed with the stack."""
    line.settimeout(REQUEST_SECONDS)
    message, descriptors, _, _ = socket.recv_fds(line, LONGEST_REQUEST, 2)
    for descriptor in descriptors:
        opened.callback(os.close, descriptor)
    connection, output = descriptors
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    requester = os.pidfd_open(_CREDENTIALS.unpack(credentials)[0])
    opened.callback(os.close, requester)
    return _Order(msgspec.json.decode(message, type=Request), connection, output, requester)


def _send(line: int, number: int) -> None:
    """Send a number, unless the requester has gone."""
    with contextlib.suppress(OSError):
        os.write(line, str(number).encode())


_SERVER_LOST: Final = 1
_ARGUMENTS: Final = 45
"""The place of the first address of the arguments, behind the name of the process in ``/proc/PID/stat``."""


def become(request: Request, server: int, connection: int, output: int) -> None:
    """Make this fork of a server the process that is asked for, up to the call of its module.

    Its command line ends with the number of the connection. A failure ends it: it must not go on as the server.
    """
    try:
        die_with_parent()
        if os.getppid() != server:
            os._exit(_SERVER_LOST)
        os.setpgid(0, 0)
        _set_files(output)
        interpreters = [entry for entry in sys.path if entry not in _search_path(os.environ)]
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        sys.path[:] = dict.fromkeys((*_search_path(os.environ), *interpreters))
        importlib.invalidate_caches()
        sys.argv[1:] = [str(connection)]
        _set_command_line(sys.executable, "-P", "-m", request.module, str(connection))
        _draw_new_seeds()
    except BaseException:  # noqa: BLE001 - see above
        traceback.print_exc()
        os._exit(1)


def _set_files(output: int) -> None:
    """Read from nothing, and print to the output."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, number)
    os.close(nothing)


def _search_path(environment: Mapping[str, str]) -> list[str]:
    """Return what an environment adds to the import path of the interpreter."""
    return [os.path.abspath(entry) for entry in environment["PYTHONPATH"].split(os.pathsep)]


def _draw_new_seeds() -> None:
    """Give torch and numpy new random numbers, as they have in each process. Python's own does so in each fork."""
    torch, random = sys.modules.get("torch"), sys.modules.get("numpy.random")
    if torch is not None:
        torch.default_generator.seed()
    if random is not None:
        random.seed()


def _set_command_line(*words: str) -> None:
    """Let ``ps`` and others show a command instead of the server's, cut where that ends: it is written over it."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return  # without /proc nobody sees it
    start, end = (int(field) for field in fields[_ARGUMENTS : _ARGUMENTS + 2])
    text = b"\0".join(map(os.fsencode, words))[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def serve(import_all: Callable[[], None]) -> None:
    """Serve, or run in a fork the module that was asked for. Nothing of what is imported may import Triton.

    Meanwhile no garbage is collected, which would take a fifth of the time of the imports. The interpreter is not torn
    down, which takes half a second where torch is imported.
    """
    server = ForkServer(socket.socket(fileno=int(sys.argv[-1])))
    die_with_parent()  # while torch is imported nothing else notices that end
    gc.disable()
    with contextlib.suppress(Exception):  # what cannot be imported raises its error in those that need it
        import_all()
    gc.freeze()  # else the first collection in each fork would copy all of it
    gc.enable()
    die_with_parent(0)
    adopt_orphans()  # of workers that have ended
    module = server.serve()
    if module is not None:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.stdout.flush()
    os._exit(0)
