"""The child process that runs a target: reads cases from its standard input, answers verdicts. Dies alone.

One JSON message a line, both ways. The first line in is a :class:`Setup`, its answer :class:`Ready` or
:class:`Refused`; every further line is an :class:`Order`, its answer an :class:`Answer`. What a target prints goes to
standard error, so that it cannot garble the answers.

Setting up takes seconds (torch, Triton, the target's own imports), and a target that crashes does so at every try of
the shrinker. So where nothing lives on a device yet, the process that is set up answers through forks of itself: the
death of one is told by :class:`Died`, and the next one is there at once.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import IO, Final

import msgspec

from fuzz_attn.errors import FuzzAttnError, UnsupportedByBackendError
from fuzz_attn.messages import Answer, Died, Order, Ready, Refused, Setup, Unsupported

_NO_MORE_ORDERS: Final = 113
"""Exit status of a fork whose standard input ended."""
_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Serve until standard input ends."""
    _die_with_parent()
    answers = _take_standard_output()
    faulthandler.enable()
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:
        os._exit(0)  # the parent is gone; there is nobody to tell


def serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    """Answer every line of ``orders`` by one line of ``answers``."""
    setup = msgspec.json.decode(orders.readline(), type=Setup)
    try:
        ready, answer = prepared(setup)
    except FuzzAttnError as error:
        _say(answers, Refused(str(error)))
        return
    _say(answers, ready)
    if ready.device == "cpu":
        _answer_in_forks(orders, answers, answer)
    else:
        _answer(orders, answers, answer)


def prepared(setup: Setup) -> tuple[Ready, Callable[[Order], Answer]]:
    """Return what a set-up worker says of itself, and the function that answers its orders.

    Imports torch, the backend and the target, in this order; raises :class:`FuzzAttnError` for what the user can mend.
    """
    from fuzz_attn.backends import backend_named  # noqa: PLC0415 - everything heavy is imported in the child alone

    backend = backend_named(setup.backend)
    backend.prepare()
    import torch  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    from fuzz_attn.experiment import Experiment  # noqa: PLC0415 - as above
    from fuzz_attn.properties import check  # noqa: PLC0415 - as above
    from fuzz_attn.targets import load_target  # noqa: PLC0415 - as above
    from fuzz_attn.tensors import digest_of, materialise  # noqa: PLC0415 - as above

    target = load_target(setup.target, setup.abi)
    shims = backend.preflight()

    def answer(order: Order) -> Answer:
        if order.digest:
            return Answer(digest=digest_of(materialise(order.case)))
        return Answer(check(Experiment(order.case, target, backend), order.relation))

    ready = Ready(
        target.name, target.slug, target.abi, backend.name, backend.device, backend.sanitizers, shims, target.domain
    )
    return ready, answer


def _answer_in_forks(orders: IO[bytes], answers: IO[bytes], answer: Callable[[Order], Answer]) -> None:
    """Answer from a fork of this process, and from a new one whenever it dies."""
    code = 0
    while code != _NO_MORE_ORDERS:
        child = os.fork()
        if not child:
            _die_with_parent()
            _answer(orders, answers, answer)
            os._exit(_NO_MORE_ORDERS)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != _NO_MORE_ORDERS:
            _say(answers, Died(code))


def _answer(orders: IO[bytes], answers: IO[bytes], answer: Callable[[Order], Answer]) -> None:
    for line in orders:
        order = msgspec.json.decode(line, type=Order)
        said: Answer | Unsupported | Refused
        try:
            said = answer(order)
        except UnsupportedByBackendError as error:
            said = Unsupported(str(error))
        except Exception:  # noqa: BLE001 - the target's own are caught: the harness is broken, and must not blame it
            said = Refused(f"fuzz_attn itself failed on a case:\n{traceback.format_exc()}")
        _say(answers, said)


def _say(answers: IO[bytes], message: msgspec.Struct) -> None:
    answers.write(msgspec.json.encode(message) + b"\n")
    answers.flush()


def _take_standard_output() -> IO[bytes]:
    """Return the real standard output, and let everything else that is printed go to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _die_with_parent() -> None:
    """Ask the kernel to end this process with its parent: a hanging target would otherwise outlive it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
