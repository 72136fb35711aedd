"""A fork server: its service for a run, the processes that it forks, and its own process.

One process imports torch, the others are its forks. Importing torch costs more than two CPU seconds, and a fork a few
milliseconds. Where none serves, processes are started as usual.

A second server is a fork of the first: it has imported Triton too, for processes that need it decorated as for a GPU.
A worker is ready after 0.03 to 0.04 CPU seconds. Before, when each imported Triton and checked the simulator itself, it
was 0.2 to 0.3 (medians of 12 starts of two targets, both trees in turn). The first request for it forks it.

Why not the fork server of ``multiprocessing`` with ``set_forkserver_preload``? It starts a process that imports torch
no faster: at best in 13 ms, ours in 11 ms (30 processes, three runs of each in turn, on a busy machine). Its processes
have the environment of the server, so that no worker could choose a GPU or a backend by itself, and they outlive a
requester that is killed, with all that they have started.

The program calls :func:`serve` with what imports all that its forks need. A fork is then like a process that was
started by itself: it has no threads and no state of random numbers of the server. Only the seed of hashes is the same.

The server forks for each request, tells the requester the number of the process and later how it ended, and kills the
process when the requester ends. What a process leaves behind is killed too. The server ends when its standard input is
closed and its last fork has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import hashlib
import importlib
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from fuzz_attn.backends.gpus import gpu_environment
from fuzz_attn.workers.fork import adopt_orphans, die_with_parent, end_children
from fuzz_attn.workers.messages import Message

PARENT: Final = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
"""Where the socket is: a folder of the user's choice may exceed the 108 bytes that a socket's name may have."""
END_SECONDS: Final = 5.0
"""The server is waited for so long; it goes on by itself while a process of somebody else still needs it."""
_WAITING: Final = 1024
"""So many requests can wait while torch is imported."""
START_SECONDS: Final = 180.0
"""The server must have imported torch and forked within this time."""
_NUMBER_BYTES: Final = 32
VARIABLE: Final = "FUZZ_ATTN_FORK_SERVER"
"""The variable with the path of a server's socket. The name of that file is the kind of processes that it forks."""

_ACT_AT_START: Final = (
    *("PYTHON", "LD_", "LANG", "LC_", "TZ", "MALLOC_", "GLIBC_", "COV"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH", "ATEN_", "NPY_", "NUMPY_", "HYPOTHESIS_NO_"),
)
"""How the names of variables begin that the interpreter, libraries, torch and others read when they are loaded."""
_ACT_LATER: Final = ("PYTHONPATH",)
"""Among those, the ones that a fork can still follow."""


@contextmanager
def fork_server(program: str) -> Iterator[Callable[[], bool]]:
    """Let processes started meanwhile be forks of a server: of the one that serves this process already, or a new one.

    ``program`` is the module that a new server runs.

    Where the system cannot do that, they are started as usual. It needs Linux 5.3. Yields what returns whether a new
    server has ended, with all of its forks.
    """
    environment = worker_environment()
    server = None if _serves(environment) else _started(environment, program)
    if server is None:
        yield lambda: False
        return
    process, path = server
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(path)
    try:
        yield lambda: process.poll() is not None
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before
        _end(process, path)


def _serves(environment: dict[str, str]) -> bool:
    """Return whether the environment names a server that forks processes with this environment."""
    try:
        connected(environment.get(VARIABLE, ""), environment).close()
    except OSError:
        return False
    return True


def _started(environment: dict[str, str], program: str) -> tuple[subprocess.Popen[bytes], Path] | None:
    """Return a new server and its socket's path; None where there can be none."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        folder = Path(tempfile.mkdtemp(prefix="fuzz-attn-forks-", dir=PARENT))
    except (AttributeError, OSError):
        return None
    path = folder / kind_of(environment)
    with ExitStack() as stack:
        try:
            listening = [stack.enter_context(_listening(each)) for each in (path, _second(path))]
            numbers = [each.fileno() for each in listening]
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-P", "-m", program, *map(str, numbers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=numbers,
                env=environment,
                process_group=0,  # as that of the processes that it forks: this process handles an interrupt
            )
        except OSError:  # the file system holds no sockets, or no process or file is left: the first worker says so
            shutil.rmtree(folder, ignore_errors=True)
            return None
    return process, path


def _listening(path: Path) -> socket.socket:
    """Return a new socket that listens at a path."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listening.bind(str(path))
        listening.listen(_WAITING)
    except BaseException:
        listening.close()
        raise
    return listening


def _second(path: Path) -> Path:
    """Return the path of the second server's socket, beside that of the first."""
    return path.with_suffix(".triton")


def _end(process: subprocess.Popen[bytes], path: Path) -> None:
    """Let a server end when its last fork has ended."""
    assert process.stdin is not None
    process.stdin.close()
    waiting = threading.Thread(target=process.wait, name="end of a fork server", daemon=True)
    waiting.start()
    waiting.join(END_SECONDS)
    shutil.rmtree(path.parent, ignore_errors=True)


class Fork:
    """A process of a fork server, with those methods of :class:`subprocess.Popen` that we use.

    The server kills the process when this object is deleted or this process ends. It ends with the server, too.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._pid: int | None = None
        self._status: int | None = None

    @property
    def pid(self) -> int:
        """The number of the process and its group; raises :class:`ProcessLookupError` if the server did not fork."""
        if self._pid is None and self._status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                number = self._receive(START_SECONDS)
                self._pid = number if self._pid is None else self._pid  # a signal handler may have asked meanwhile
        if self._pid is None:
            raise ProcessLookupError("the fork server has not started the process")
        return self._pid

    @property
    def started(self) -> int | None:
        """The number of the process, None while the server has not forked, which is not waited for."""
        if self._pid is None and self._status is None:
            with contextlib.suppress(OSError, ValueError):
                arrived = select.poll()
                arrived.register(self._line.fileno(), select.POLLIN)
                number = os.read(self._line.fileno(), _NUMBER_BYTES) if arrived.poll(0) else b""
                self._pid = int(number) if number else None
        return self._pid

    def poll(self) -> int | None:
        """Return how the process ended, None while this process has not been told: its number stays its own so long."""
        return self._status

    def abandon(self) -> None:
        """Want no more of a process that has not started: the server ends it when it has."""
        self._status = -signal.SIGKILL
        self._line.close()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the status, or minus the signal that killed the process.

        Raises :class:`subprocess.TimeoutExpired` when so many seconds have passed before.
        """
        if self._status is None:
            try:
                status = self._receive(timeout) if self.pid else None
            except ProcessLookupError:
                status = None
            self._status = -signal.SIGKILL if status is None else status  # the server's end kills its forks
            self._line.close()
        return self._status

    def _receive(self, seconds: float | None) -> int | None:
        """Return the next number that the server sends; None if it has died."""
        self._line.settimeout(seconds)
        try:
            message = self._line.recv(_NUMBER_BYTES)
        except TimeoutError:
            raise subprocess.TimeoutExpired("a fork", seconds or 0.0) from None
        except ConnectionResetError:
            return None
        return int(message) if message else None


def forked(
    command: Sequence[str],
    environment: Mapping[str, str],
    connection: int,
    output: int,
    end_signal: int,
    *,
    with_triton: bool = False,
) -> Fork | None:
    """Return a new process of the fork server that the environment names.

    It runs a command ``python -P -m MODULE`` with the number of its end of the connection as the last argument, and
    prints to the output. ``with_triton`` asks for one that has imported Triton, which no longer decorates for its
    interpreter. Returns None where no server can do that.
    """
    path, module = environment.get(VARIABLE), command[-1]
    if path is None or tuple(command) != (sys.executable, "-P", "-m", module):
        return None
    try:
        request = msgspec.json.encode(Request(module, dict(environment), os.getcwd(), end_signal))
        line = connected(path, environment, with_triton=with_triton)
    except (OSError, UnicodeError):
        return None
    try:
        socket.send_fds(line, [request], [connection, output])
    except OSError:
        line.close()
        return None
    return Fork(line)


def connected(path: str, environment: Mapping[str, str], *, with_triton: bool = False) -> socket.socket:
    """Return a connection to a server; raises OSError where it has ended or its processes are of another kind."""
    if Path(path).name != kind_of(environment):
        raise FileNotFoundError(path)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect(str(_second(Path(path))) if with_triton else path)
    except BaseException:
        line.close()
        raise
    return line


class Request(Message, frozen=True):
    """A module to run as the main program of a new process.

    ``end_signal`` ends the process's group when the process that asked for it ends.
    """

    module: str
    environment: dict[str, str]
    folder: str
    end_signal: int


def worker_environment(index: int = 0) -> dict[str, str]:
    """Return the environment of a new process, with its GPU by number and the import path of this process."""
    own = {"PYTHONPATH": _import_path(), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, **gpu_environment(index)}


def kind_of(environment: Mapping[str, str]) -> str:
    """Return a name of what a fork cannot change: interpreter, package, and variables that act at the start."""
    variables = sorted(
        (name, value)
        for name, value in environment.items()
        if name.startswith(_ACT_AT_START) and name not in _ACT_LATER
    )
    return hashlib.sha256(repr((sys.executable, Path(__file__), variables)).encode(errors="replace")).hexdigest()[:16]


def _import_path() -> str:
    """Return this process's import path, so that the new one finds the same targets."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


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
    """Serves a listening socket. Each descriptor that it waits for has a handler, and is open as long as that.

    The first request at the socket ``second`` is left to a fork that imports more and serves that one.
    """

    def __init__(
        self,
        listening: socket.socket,
        second: socket.socket | None = None,
        import_more: Callable[[], None] = lambda: None,
    ) -> None:
        self._listening = listening
        self._second = second
        self._import_more = import_more
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], str | None]] = {}
        self._forks: set[int] = set()
        """The numbers of the processes that have not been forgotten."""
        self._watch(sys.stdin.fileno(), self._stop)
        self._watch(listening.fileno(), self._accept)
        if second is not None:
            self._watch(second.fileno(), partial(self._divide, second))

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
        shutil.rmtree(Path(self._listening.getsockname()).parent, ignore_errors=True)
        for listening in (self._listening, self._second):
            if listening is not None:
                self._forget(listening.detach())
        self._forget(sys.stdin.fileno())

    def _divide(self, second: socket.socket) -> str | None:
        """Start the second server, whose first request waits; returns the name of the module in each of its forks."""
        server = os.getpid()
        self._second = None
        try:
            pid = os.fork()
        except OSError:  # no process is left: what asks finds no server, and starts a process as usual
            self._forget(second.detach())
            return None
        if not pid:
            for descriptor in self._handlers.keys() - {sys.stdin.fileno(), second.fileno()}:
                os.close(descriptor)
            return _serve_second(second, self._import_more, server)
        self._forget(second.detach())
        self._forks.add(pid)
        end = os.pidfd_open(pid)
        self._watch(end, partial(self._note_end_of_second, pid, end))
        return None

    def _note_end_of_second(self, pid: int, end: int) -> None:
        """Forget the second server; end as well if it was killed, so that no death of its forks is a case's fault."""
        self._forget(end)
        _, status = os.waitpid(pid, 0)
        if status:
            os._exit(_SERVER_LOST)
        self._forks.remove(pid)
        end_children(self._forks)

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


def become(request: Request, server: int, connection: int, output: int) -> None:
    """Make this fork of a server the process that is asked for, up to the call of its module.

    Its last argument is the number of the connection; ``ps`` and others go on showing the server's command. A failure
    ends it: it must not go on as the server.
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


def serve(import_all: Callable[[], None], import_more: Callable[[], None] = lambda: None) -> None:
    """Serve, or run in a fork the module that was asked for.

    Nothing of what ``import_all`` imports may import Triton, which ``import_more`` does, in the second server only. The
    interpreter is not torn down, which takes half a second where torch is imported.
    """
    listening, second = (socket.socket(fileno=int(number)) for number in sys.argv[-2:])
    server = ForkServer(listening, second, import_more)
    die_with_parent()  # while torch is imported nothing else notices that end
    _import(import_all)
    die_with_parent(0)
    adopt_orphans()  # of workers that have ended
    module = server.serve()
    if module is not None:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.stdout.flush()
    os._exit(0)


def _serve_second(listening: socket.socket, import_more: Callable[[], None], first: int) -> str:
    """Serve as the second server; returns in each fork the name of its module. It ends with the first server."""
    die_with_parent()
    if os.getppid() != first:
        os._exit(_SERVER_LOST)
    _import(import_more)
    atexit.register(gc.unfreeze)  # in a fork that exits: Triton's bindings print what is not collected at the end
    adopt_orphans()
    module = ForkServer(listening).serve()
    if module is None:
        os._exit(0)
    return module


def _import(import_all: Callable[[], None]) -> None:
    """Import for all forks. Meanwhile no garbage is collected, which would take a fifth of the time of the imports."""
    gc.disable()
    with contextlib.suppress(Exception):  # what cannot be imported raises its error in those that need it
        import_all()
    gc.freeze()  # else the first collection in each fork would copy all of it
    gc.enable()
