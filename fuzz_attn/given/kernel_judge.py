"""Kernel judge: a target with its backend in this process, loaded and calibrated once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import msgspec

from fuzz_attn.binding.binding import Binding
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.orders import Answer, Order, Setup
from fuzz_attn.operations.registry import operation_of


class KernelJudge:
    """Judges cases on a target in this process; raises :class:`FuzzAttnError` where target or backend do not load."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        with _one_thread():
            self._judge = load(setup)
            self.ready = self._judge.ready()
        self.operation = operation_of(self.ready.domain)

    def judge(self, order: Order) -> Answer:
        """Return the answer to an order; raises :class:`BackendError` where the backend cannot run the kernel."""
        with _one_thread():
            return self._judge.judge(order)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread, as everywhere in this package, and afterwards as many as the user's other tests had."""
    import torch  # noqa: PLC0415 - here, so that a test that is only collected does not import it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def kernel_judge(target: str, family: str | None, binding: Binding | None, backend: str | None) -> KernelJudge:
    """Return the judge of a target, the same one each time.

    Without a ``backend`` it is ``auto``, but with ``TRITON_INTERPRET=1`` the interpreter, as Triton has decorated the
    kernels of this process for that.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    chosen = backend or ("interpreter" if interpreted else "auto")
    return _loaded(target, family, msgspec.json.encode(binding), chosen)


@cache
def _loaded(target: str, family: str | None, binding: bytes, backend: str) -> KernelJudge:
    stated = msgspec.json.decode(binding, type=Binding | None)
    return KernelJudge(Setup(target, family, backend, binding=stated))
