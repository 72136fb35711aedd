"""Fork: a process that a fork server has started for this one."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn.workers.fork_request import VARIABLE, Request, kind_of

START_SECONDS: Final = 180.0
"""The server must have imported torch and forked within this time."""
_NUMBER_BYTES: Final = 32


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
