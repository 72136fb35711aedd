"""The child process that runs a target: reads cases from its standard input, answers verdicts. Dies alone.

One JSON message a line, both ways. The first line in is a :class:`Setup`, its answer :class:`Ready` or
:class:`Refused`; every further line is an :class:`Order`, its answer an :class:`Answer`. What a target prints goes to
standard error, so that it cannot garble the answers, and what it reads is empty, so that it cannot take an order away.

Setting up takes seconds (torch, Triton, the target's own imports), and a target that crashes does so at every try of
the shrinker. So the process that is set up answers through forks of itself: the death of one is told by :class:`Died`,
and the next one is there at once. A device does not survive a fork, so there each fork wakes it anew.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

import msgspec

from fuzz_attn.engine.messages import DEVICE_LOST, Answer, Died, Order, Ready, Refused, Setup, Unsupported
from fuzz_attn.errors import BackendError, DeviceLostError, FuzzAttnError, UnsupportedByBackendError

if TYPE_CHECKING:
    from fuzz_attn.backends.backend import Backend
    from fuzz_attn.targets.target import Target

_NO_MORE_ORDERS: Final = 113
"""Exit status of a fork whose standard input ended."""
_UNFIT: Final = 112
"""Exit status of a fork that cannot wake the device."""
_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Serve until standard input ends."""
    die_with_parent()
    orders, answers = take_standard_streams()
    faulthandler.enable()
    try:
        serve(orders, answers)
    except BrokenPipeError:
        os._exit(0)  # the parent is gone; there is nobody to tell


def serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    """Answer every line of ``orders`` by one line of ``answers``."""
    setup = msgspec.json.decode(orders.readline(), type=Setup)
    try:
        loaded = load(setup)
        if loaded.backend.forks_first:
            _answer_on_device(orders, answers, loaded)
            return
        ready = loaded.ready()
    except FuzzAttnError as error:
        _say(answers, Refused(str(error)))
        return
    _say(answers, ready)
    _answer_in_forks(lambda: _answer(orders, answers, loaded.answer), answers)


@dataclass(frozen=True)
class Loaded:
    """A target and the backend that is to run it: imported, but nothing was tried yet."""

    target: Target
    backend: Backend

    def ready(self) -> Ready:
        """Return what a set-up worker says of itself; raises :class:`FuzzAttnError` where its backend does not work."""
        target, backend = self.target, self.backend
        backend.start()
        shims = backend.preflight()
        domain = target.domain
        if not backend.reaches_large_offsets():
            domain = msgspec.structs.replace(domain, features=domain.features - {"large_offsets"})
        return Ready(
            target.name, target.slug, target.family, backend.name, backend.device, backend.sanitizers, shims, domain
        )

    def answer(self, order: Order) -> Answer:
        """Return the answer to an order."""
        from fuzz_attn.inputs.tensors import digest_of, materialise  # noqa: PLC0415 - as above
        from fuzz_attn.properties.check import check  # noqa: PLC0415 - as above
        from fuzz_attn.properties.experiment import Experiment  # noqa: PLC0415 - everything heavy is imported in the child alone

        if order.digest:
            return Answer(digest=digest_of(materialise(order.case)))
        verdict = check(Experiment(order.case, self.target, self.backend), order.relation)
        kernels = self.backend.new_kernels()
        masks = self.backend.new_masks()
        return Answer(verdict, masks=masks, compiled=kernels.compiled, loaded=kernels.loaded)


def load(setup: Setup) -> Loaded:
    """Return the target and the backend, imported: torch, the backend and the target, in this order.

    Raises :class:`FuzzAttnError` for what the user can mend.
    """
    from fuzz_attn.backends import backend_named  # noqa: PLC0415 - everything heavy is imported in the child alone

    backend = backend_named(setup.backend)
    backend.prepare()
    import torch  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    importlib.import_module("fuzz_attn.properties.check")  # so that no fork has to
    from fuzz_attn.targets.loading import load_target  # noqa: PLC0415 - as above

    return Loaded(load_target(setup.target, setup.family).on_device(backend.tensor_core_slack), backend)


def _answer_in_forks(answer: Callable[[], None], answers: IO[bytes]) -> None:
    """Answer from a fork of this process, and from a new one whenever it dies."""
    while (code := _exit_of_fork(answer)) != _NO_MORE_ORDERS:
        _say(answers, Died(code))


def _answer_on_device(orders: IO[bytes], answers: IO[bytes], loaded: Loaded) -> None:
    """Answer from forks that each wake the device: a dead one costs its successor a start of the device, no imports.

    Where a fork cannot wake it, since the target's imports did so already, this process answers, and dies with it.
    """

    def first() -> None:
        try:
            loaded.backend.start()
        except BackendError:
            os._exit(_UNFIT)
        introduce()

    def introduce() -> None:
        try:
            ready = loaded.ready()
        except FuzzAttnError as error:
            _say(answers, Refused(str(error)))
            return
        _say(answers, ready)
        _answer(orders, answers, loaded.answer)

    def following() -> None:
        try:
            loaded.backend.start()
        except BackendError as error:
            _say(answers, Refused(str(error)))
            return
        _answer(orders, answers, loaded.answer)

    code = _exit_of_fork(first)
    if code == _UNFIT:
        introduce()
    elif code != _NO_MORE_ORDERS:
        _say(answers, Died(code))
        _answer_in_forks(following, answers)


def _exit_of_fork(work: Callable[[], None]) -> int:
    """Return how a fork of this process ended that does the work."""
    child = os.fork()
    if not child:
        die_with_parent()
        work()
        os._exit(_NO_MORE_ORDERS)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _answer(orders: IO[bytes], answers: IO[bytes], answer: Callable[[Order], Answer]) -> None:
    for line in orders:
        order = msgspec.json.decode(line, type=Order)
        said: Answer | Unsupported | Refused
        try:
            said = answer(order)
        except UnsupportedByBackendError as error:
            said = Unsupported(str(error))
        except DeviceLostError as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(DEVICE_LOST)
        except Exception:  # noqa: BLE001 - the target's own are caught: the harness is broken, and must not blame it
            said = Refused(f"fuzz_attn itself failed on a case:\n{traceback.format_exc()}")
        _say(answers, said)


def _say(answers: IO[bytes], message: msgspec.Struct) -> None:
    answers.write(msgspec.json.encode(message) + b"\n")
    answers.flush()


def take_standard_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Return the real standard input and output; whoever else reads finds nothing, and prints to standard error."""
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return orders, answers


def die_with_parent() -> None:
    """Ask the kernel to end this process with its parent: a hanging target would otherwise outlive it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
