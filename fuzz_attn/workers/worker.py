"""The child's end of a worker process: serves messages of its parent, and survives what a target does to it.

Setting up takes seconds (torch, Triton, the target's own imports), and a target that crashes does so at every step of
shrinking. So the process that is set up answers through forks of itself: it reports the death of one with
:class:`~fuzz_attn.workers.messages.Died`, and the next one is ready at once. A device does not survive a fork, so on a
device each fork starts it anew (:mod:`fuzz_attn.workers.sharing`).
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Final, Protocol, TypeAlias

import msgspec

from fuzz_attn.backends.cuda import says_full
from fuzz_attn.errors import DeviceFullError, DeviceLostError, FuzzAttnError, ProcessError, UnsupportedByBackendError
from fuzz_attn.workers.fork import NO_MORE_MESSAGES, die_with_parent, run_in_fork
from fuzz_attn.workers.messages import (
    CONNECTION_LOST,
    DEVICE_FULL,
    DEVICE_LOST,
    HARNESS_FAILED,
    RENEWED,
    SHARES_AGAIN,
    Compiling,
    Died,
    HarnessFailed,
    Refused,
    Renew,
    Unsupported,
)
from fuzz_attn.workers.sharing import CANNOT_START, NOT_READY, PAUSE_SECONDS, Sharing

NICE: Final = 5
"""Processes that judge on a device let others go first: those that compile what they judge next."""
_RENEW: Final = msgspec.json.encode(Renew())

Send: TypeAlias = Callable[[msgspec.Struct], None]


class Service(Protocol):
    """What a worker does: it is loaded once, before the process forks."""

    @property
    def forks_first(self) -> bool:
        """Whether the process must fork before the device starts."""

    @property
    def memory(self) -> int:
        """How many bytes of memory a fork may use, 0 for no limit."""

    def start(self) -> None:
        """Start the device; raises :class:`BackendError` if it cannot."""

    def ready(self) -> msgspec.Struct:
        """Start and check the backend; raises :class:`FuzzAttnError` where it does not work."""

    def answer(self, message: bytes, send: Send) -> None:
        """Carry out one message of the parent and send everything that it leads to."""


def serve(load: Callable[[bytes], Service]) -> None:
    """Serve the connection that the last argument of the command line names, until the parent closes it.

    ``load`` makes the service from the first message; raises :class:`FuzzAttnError` for what the user can mend.
    """
    die_with_parent()
    faulthandler.enable()
    server = _Server(Connection(int(sys.argv[-1])))
    try:
        server.serve(load)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent has ended


class _Server:
    """Answers messages of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._worker = self._process = os.getpid()
        self._socket = _file(connection.fileno())
        self._sharing = Sharing()

    def serve(self, load: Callable[[bytes], Service]) -> None:
        """Answer messages until the end, or send why no process can answer."""
        try:
            self.run(load)
        except ProcessError as error:
            self._send(Refused(str(error)))

    def run(self, load: Callable[[bytes], Service]) -> None:
        setup = self._receive()
        if setup is None:
            return
        try:
            service = load(setup)
            if service.forks_first:
                self._answer_on_device(service)
                return
            ready = service.ready()
        except FuzzAttnError as error:
            self._send(Refused(str(error)))
            return
        except Exception as error:  # noqa: BLE001 - a library may raise anything where memory or /proc is missing
            traceback.print_exc()
            self._send(Refused(f"a worker cannot be set up: {_one_line(error)}"))
            return
        self._send(ready)
        self._answer_in_forks(partial(self._answer, service), service.memory)

    def _receive(self) -> bytes | None:
        try:
            return self._connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            return None

    def _next(self) -> bytes | None:
        """Return the next message; a fork that shares a GPU which another worker has broken ends while it waits."""
        while self._sharing.shared and not self._connection.poll(PAUSE_SECONDS):
            if self._sharing.is_broken():
                os._exit(SHARES_AGAIN)
        return self._receive()

    def _send(self, message: msgspec.Struct) -> None:
        """Send a message, unless the target has forked or has closed or replaced the file of the connection."""
        if os.getpid() != self._process:
            os._exit(0)  # only one process may answer
        try:
            replaced = _file(self._connection.fileno()) != self._socket
        except OSError:
            replaced = True
        if replaced:
            os._exit(CONNECTION_LOST)
        self._connection.send_bytes(msgspec.json.encode(message))

    def _answer_in_forks(self, answer: Callable[[], None], memory: int) -> None:
        """Answer from a fork of this process, and from a new one whenever it dies."""
        while (died := run_in_fork(answer, memory)).code != NO_MORE_MESSAGES:
            self._report_death(died)

    def _report_death(self, died: Died) -> None:
        """Report the death of a fork, unless it has reported it itself or has ended between two orders."""
        if died.code not in (HARNESS_FAILED, SHARES_AGAIN):
            self._send(died)

    def _answer_on_device(self, service: Service) -> None:
        """Answer from forks that each start the device: a death costs a start of the device but no imports.

        If a fork cannot start it, because the target's imports did so already, this process answers, and its death
        ends the worker.
        """
        answer, instead = self._answer_first, self._introduce
        while (died := run_in_fork(partial(answer, service), service.memory)).code != NO_MORE_MESSAGES:
            if died.code not in (CANNOT_START, NOT_READY):
                self._report_death(died)
                self._sharing.after(died.code)
                answer, instead = self._answer_next, self._answer_here
            elif not self._sharing.another_way(died.code):
                instead(service)
                return

    def _answer_first(self, service: Service) -> None:
        self._process = os.getpid()
        self._start(service)
        self._introduce(service)

    def _answer_next(self, service: Service) -> None:
        self._process = os.getpid()
        self._send(Compiling())
        self._start(service)
        self._send(Compiling(ended=True))
        self._answer(service)

    def _answer_here(self, service: Service) -> None:
        """Answer from the process that is set up, or send why the device does not start."""
        try:
            service.start()
        except FuzzAttnError as error:
            self._send(Refused(str(error)))
            return
        self._send(Compiling(ended=True))
        self._answer(service)

    def _start(self, service: Service) -> None:
        """Start the device in a fork, which ends where that fails."""
        self._sharing.enter()
        try:
            service.start()
        except Exception as error:
            if not isinstance(error, FuzzAttnError) and not self._sharing.shared:
                raise
            os._exit(self._sharing.failure(error))
        os.nice(NICE)
        if self._sharing.active:
            self._send(self._sharing.started())

    def _introduce(self, service: Service) -> None:
        """Send that the worker is ready, then answer."""
        try:
            ready = service.ready()
        except Exception as error:
            if self._sharing.shared:  # another worker may have broken the device: the next fork is apart from it
                os._exit(CANNOT_START)
            if not isinstance(error, FuzzAttnError):
                raise
            self._send(Refused(str(error)))
            return
        self._send(ready)
        self._answer(service)

    def _answer(self, service: Service) -> None:
        self._process = os.getpid()
        while (message := self._next()) is not None:
            if message == _RENEW:
                os._exit(RENEWED)
            try:
                service.answer(message, self._send)
            except UnsupportedByBackendError as error:
                self._send(Unsupported(str(error)))
            except DeviceFullError:
                os._exit(DEVICE_FULL)
            except DeviceLostError as error:
                print(error, file=sys.stderr, flush=True)
                os._exit(DEVICE_LOST)
            except FuzzAttnError as error:
                self._send(Refused(str(error)))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except BaseException as error:  # noqa: BLE001 - a target's own are verdicts: here the harness failed
                if says_full(error):  # tensors of the harness found no room
                    os._exit(DEVICE_FULL)
                self._report(error)
            self._sharing.count_order()

    def _report(self, error: BaseException) -> None:
        """Report a failure of the harness and end the process: the target may have changed anything in it."""
        text = "".join(traceback.format_exception(error))
        self._send(HarnessFailed(_one_line(error), text, worker_ended=self._process == self._worker))
        os._exit(HARNESS_FAILED)


def _file(descriptor: int) -> tuple[int, int]:
    """Return what identifies the open file of a descriptor."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _one_line(error: BaseException) -> str:
    """Return an exception's type, text and innermost line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(traceback.format_exception_only(error)[-1].split())
    return f"{text} at {frame.filename}:{frame.lineno}"
