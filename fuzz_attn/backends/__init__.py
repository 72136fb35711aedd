"""Backends: where Triton kernels run, by name.

`backend` is the protocol. `simulator`, `interpreter` and `cuda` implement it; `preflight` checks their arithmetic,
`shims` fixes the interpreter's, `poisoned_scratch` poisons uninitialised tensors, `kernel_coverage` holds what a
run saw of the kernels' masks and configurations, `gpus` assigns GPUs to workers and lets them share one.
"""

from __future__ import annotations

import os
from typing import Final, Literal

from fuzz_attn.backends.backend import Backend
from fuzz_attn.errors import BackendError

BackendName = Literal["auto", "simulator", "interpreter", "cuda"]
BACKEND_NAMES: Final[tuple[BackendName, ...]] = ("auto", "simulator", "interpreter", "cuda")


def backend_named(name: str) -> Backend:
    """Return the backend of that name; ``auto`` is ``cuda`` where torch sees a GPU, ``simulator`` elsewhere.

    With ``TRITON_INTERPRET=1``, ``auto`` is always ``simulator``. Raises :class:`BackendError` for an unknown name.
    """
    if name == "auto":
        name = "cuda" if _sees_gpu() else "simulator"
    if name == "cuda":
        from fuzz_attn.backends.cuda import CudaBackend  # noqa: PLC0415 - as the others are

        return CudaBackend()
    if name == "simulator":
        # Before the import of Triton: its own jit functions would else be interpreted, and those of a target not.
        os.environ.pop("TRITON_INTERPRET", None)
        from fuzz_attn.backends.simulator import SimulatorBackend  # noqa: PLC0415 - imports torch

        return SimulatorBackend()
    if name == "interpreter":
        from fuzz_attn.backends.interpreter import InterpreterBackend  # noqa: PLC0415 - imports numpy

        return InterpreterBackend()
    raise BackendError(f"backend={name!r} must be one of: {', '.join(BACKEND_NAMES)}")


def _sees_gpu() -> bool:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return False
    import torch  # noqa: PLC0415 - the command line lists the names without it

    return torch.cuda.is_available()
