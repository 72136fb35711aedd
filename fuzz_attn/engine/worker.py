"""The child's end of a worker process: serves messages of its parent, and survives what a target does to it.

Setting up takes seconds (torch, Triton, the target's own imports), and a target that crashes does so at every step of
shrinking. So the process that is set up answers through forks of itself: it reports the death of one with
:class:`~fuzz_attn.engine.messages.Died`, and the next one is ready at once. A device does not survive a fork, so on a
device each fork starts it anew.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Final, Protocol, TypeAlias

import msgspec

from fuzz_attn.engine.messages import DEVICE_LOST, Died, Ready, Refused, Unsupported
from fuzz_attn.errors import BackendError, DeviceLostError, FuzzAttnError, UnsupportedByBackendError

_NO_MORE_MESSAGES: Final = 113
"""Exit status of a fork whose parent closed the connection."""
_CANNOT_START: Final = 112
"""Exit status of a fork that cannot start the device."""
_PR_SET_PDEATHSIG: Final = 1

Send: TypeAlias = Callable[[msgspec.Struct], None]


class Service(Protocol):
    """What a worker does: it is loaded once, before the process forks."""

    @property
    def forks_first(self) -> bool:
        """Whether the process must fork before the device starts."""

    def start(self) -> None:
        """Start the device; raises :class:`BackendError` if it cannot."""

    def ready(self) -> Ready:
        """Start and check the backend; raises :class:`FuzzAttnError` where it does not work."""

    def answer(self, message: bytes, send: Send) -> None:
        """Carry out one message of the parent and send everything that it leads to."""


def serve(load: Callable[[bytes], Service]) -> None:
    """Serve the connection that the last argument of the command line names, until the parent closes it.

    ``load`` makes the service from the first message; raises :class:`FuzzAttnError` for what the user can mend.
    """
    _die_with_parent()
    faulthandler.enable()
    server = _Server(Connection(int(sys.argv[-1])))
    try:
        server.run(load)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent has ended


class _Server:
    """Answers messages of one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
        self._send(ready)
        self._answer_in_forks(partial(self._answer, service))

    def _receive(self) -> bytes | None:
        try:
            return self._connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            return None

    def _send(self, message: msgspec.Struct) -> None:
        self._connection.send_bytes(msgspec.json.encode(message))

    def _answer_in_forks(self, answer: Callable[[], None]) -> None:
        """Answer from a fork of this process, and from a new one whenever it dies."""
        while (code := _exit_code_of_fork(answer)) != _NO_MORE_MESSAGES:
            self._send(Died(code))

    def _answer_on_device(self, service: Service) -> None:
        """Answer from forks that each start the device: a death costs a start of the device but no imports.

        If a fork cannot start it, because the target's imports did so already, this process answers, and its death
        ends the worker.
        """
        code = _exit_code_of_fork(partial(self._answer_first, service))
        if code == _CANNOT_START:
            self._introduce(service)
        elif code != _NO_MORE_MESSAGES:
            self._send(Died(code))
            self._answer_in_forks(partial(self._answer_next, service))

    def _answer_first(self, service: Service) -> None:
        try:
            service.start()
        except BackendError:
            os._exit(_CANNOT_START)
        self._introduce(service)

    def _answer_next(self, service: Service) -> None:
        try:
            service.start()
        except BackendError as error:
            self._send(Refused(str(error)))
            return
        self._answer(service)

    def _introduce(self, service: Service) -> None:
        """Send that the worker is ready, then answer."""
        try:
            ready = service.ready()
        except FuzzAttnError as error:
            self._send(Refused(str(error)))
            return
        self._send(ready)
        self._answer(service)

    def _answer(self, service: Service) -> None:
        while (message := self._receive()) is not None:
            try:
                service.answer(message, self._send)
            except UnsupportedByBackendError as error:
                self._send(Unsupported(str(error)))
            except DeviceLostError as error:
                print(error, file=sys.stderr, flush=True)
                os._exit(DEVICE_LOST)
            except Exception:  # noqa: BLE001 - a target's own are verdicts: this one is a defect of the harness
                self._send(Refused(f"fuzz_attn itself failed on a case:\n{traceback.format_exc()}"))


def _exit_code_of_fork(work: Callable[[], None]) -> int:
    """Return how a fork of this process that does the work ended."""
    child = os.fork()
    if not child:
        _die_with_parent()
        work()
        os._exit(_NO_MORE_MESSAGES)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _die_with_parent() -> None:
    """Let the kernel end this process with its parent: a hanging target would otherwise outlive it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
