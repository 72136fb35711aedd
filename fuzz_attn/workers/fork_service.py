"""The service of a fork server, for as long as a run needs it, and the processes that it forks.

One process imports torch, the others are its forks. Importing torch costs more than two CPU seconds, and a fork a few
milliseconds. Where none serves, processes are started as usual.

Why not the fork server of ``multiprocessing`` with ``set_forkserver_preload``? It starts a process that imports torch
no faster: at best in 13 ms, ours in 11 ms (30 processes, three runs of each in turn, on a busy machine). Its processes
have the environment of the server, so that no worker could choose a GPU or a backend by itself, and they outlive a
requester that is killed, with all that they have started.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn.backends.gpus import gpu_environment
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        try:
            listening.bind(str(path))
        except OSError:  # some file systems hold no sockets
            folder.rmdir()
            return None
        listening.listen(_WAITING)
        try:
            process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-P", "-m", program, str(listening.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
                env=environment,
                process_group=0,  # as that of the processes that it forks: this process handles an interrupt
            )
        except OSError:  # no process or file is left: the first worker says so
            path.unlink(missing_ok=True)
            folder.rmdir()
            return None
    return process, path


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
    command: Sequence[str], environment: Mapping[str, str], connection: int, output: int, end_signal: int
) -> Fork | None:
    """Return a new process of the fork server that the environment names.

    It runs a command ``python -P -m MODULE`` with the number of its end of the connection as the last argument, and
    prints to the output. Returns None where no server can do that.
    """
    path, module = environment.get(VARIABLE), command[-1]
    if path is None or tuple(command) != (sys.executable, "-P", "-m", module):
        return None
    try:
        request = msgspec.json.encode(Request(module, dict(environment), os.getcwd(), end_signal))
        line = connected(path, environment)
    except (OSError, UnicodeError):
        return None
    try:
        socket.send_fds(line, [request], [connection, output])
    except OSError:
        line.close()
        return None
    return Fork(line)


def connected(path: str, environment: Mapping[str, str]) -> socket.socket:
    """Return a connection to a server; raises OSError where it has ended or its processes are of another kind."""
    if Path(path).name != kind_of(environment):
        raise FileNotFoundError(path)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect(path)
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
    own = {"PYTHONPATH": _search_path(), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, **gpu_environment(index)}


def kind_of(environment: Mapping[str, str]) -> str:
    """Return a name of what a fork cannot change: interpreter, package, and variables that act at the start."""
    variables = sorted(
        (name, value)
        for name, value in environment.items()
        if name.startswith(_ACT_AT_START) and name not in _ACT_LATER
    )
    return hashlib.sha256(repr((sys.executable, Path(__file__), variables)).encode(errors="replace")).hexdigest()[:16]


def _search_path() -> str:
    """Return this process's import path, so that the new one finds the same targets."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
