"""InProcess: judges cases in this process, so that prints and ``breakpoint()`` of a target work."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.orders import Answer, Order, Setup
from fuzz_attn.errors import BackendError, UnsupportedByBackendError


class InProcess:
    """Judges cases as an isolated worker does, but a crash of the target ends this process, and nothing has a limit.

    Only one backend can be used in a process. Raises :class:`fuzz_attn.errors.FuzzAttnError` on entering where the
    target or the backend cannot be set up.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def __enter__(self) -> Self:
        """Load the target and the backend."""
        self._judge = load(self.setup)
        self.ready = self._judge.ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Leave the process as it is."""

    def judge(self, order: Order, *, deadline: float | None = None) -> Answer:
        """Return the answer to an order; raises :class:`BackendError` where the backend cannot run the kernel."""
        try:
            return self._judge.judge(order)
        except UnsupportedByBackendError as error:
            raise BackendError(f"{error}; try --backend interpreter") from error
