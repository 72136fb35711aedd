"""The service of a fork server, for as long as a run needs it: one process imports torch, the others are its forks.

Importing torch costs more than two CPU seconds, and a fork a few milliseconds. Where none serves, processes are
started as usual.

Why not the fork server of ``multiprocessing`` with ``set_forkserver_preload``? It starts a process that imports torch
no faster: at best in 13 ms, ours in 11 ms (30 processes, three runs of each in turn, on a busy machine). Its processes
have the environment of the server, so that no worker could choose a GPU or a backend by itself, and they outlive a
requester that is killed, with all that they have started.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fuzz_attn.workers.fork_request import VARIABLE, kind_of, worker_environment
from fuzz_attn.workers.forked_process import connected

PARENT: Final = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
"""Where the socket is: a folder of the user's choice may exceed the 108 bytes that a socket's name may have."""
END_SECONDS: Final = 5.0
"""The server is waited for so long; it goes on by itself while a process of somebody else still needs it."""
_WAITING: Final = 1024
"""So many requests can wait while torch is imported."""


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
