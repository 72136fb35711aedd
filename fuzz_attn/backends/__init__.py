"""Where Triton kernels run, by name."""

from __future__ import annotations

from typing import Final, Literal

from fuzz_attn.backends.base import Backend
from fuzz_attn.errors import BackendError

BackendName = Literal["auto", "simulator", "interpreter"]
BACKEND_NAMES: Final[tuple[BackendName, ...]] = ("auto", "simulator", "interpreter")


def backend_named(name: str) -> Backend:
    """Return the backend of that name; ``auto`` is the best one that this machine can run.

    Raises :class:`BackendError` for a name that does not exist.
    """
    if name in ("auto", "simulator"):
        from fuzz_attn.backends.simulated import SimulatorBackend  # noqa: PLC0415 - imports torch

        return SimulatorBackend()
    if name == "interpreter":
        from fuzz_attn.backends.interpreter import InterpreterBackend  # noqa: PLC0415 - imports numpy

        return InterpreterBackend()
    raise BackendError(f"backend={name!r} must be one of: {', '.join(BACKEND_NAMES)}")
