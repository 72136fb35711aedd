"""The compiler backend: finds out which kernels a target's launches need, for a GPU that this process does not have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from fuzz_attn.backends.backend import Kernels, Watch
from fuzz_attn.backends.kernel_coverage import Mask

if TYPE_CHECKING:
    from fuzz_attn.ttir.compiler_compat import KernelKey, WantedKernel
    from fuzz_attn.ttir.kernel_arithmetic import KernelArithmetic


class CompilerBackend:
    """Runs no kernel. ``answers`` is a context in which a target's questions about its GPU are answered.

    Tensors are on the CPU. They are as aligned as on a GPU, so Triton specialises kernels in the same way.
    """

    name = "compiler"
    device = "cpu"
    sanitizers = False
    tensor_core_slack = 1.0
    forks_first = False
    compiles = True

    def __init__(self, answers: Callable[[], AbstractContextManager[None]]) -> None:
        self._answers = answers
        self._wanted: dict[KernelKey, WantedKernel] = {}

    def prepare(self) -> None:
        """Let Triton decorate kernels as for a GPU."""
        os.environ.pop("TRITON_INTERPRET", None)

    def start(self) -> None:
        """Do nothing: a CPU needs no initialisation."""

    def gpu(self) -> None:
        """Return None: kernels run on the CPU."""

    def preflight(self) -> tuple[str, ...]:
        """Return nothing: no kernel runs."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    @contextmanager
    def running(self) -> Iterator[Watch]:
        """Note the kernel of each launch instead of launching it."""
        from fuzz_attn.backends.poisoned_scratch import PoisonedScratch  # noqa: PLC0415 - imports torch
        from fuzz_attn.ttir.compiler_compat import kernels_wanted  # noqa: PLC0415 - imports Triton

        with self._answers(), PoisonedScratch(), kernels_wanted(self._want):
            yield Watch()

    def _want(self, kernel: WantedKernel) -> None:
        self._wanted.setdefault(kernel.key, kernel)

    def wanted(self) -> list[WantedKernel]:
        """Return the kernels of all launches since the last call, each once."""
        wanted, self._wanted = self._wanted, {}
        return list(wanted.values())

    def unrecorded(self, *, own: bool = True) -> AbstractContextManager[None]:
        """Return a context that changes nothing: no masks are recorded anyway."""
        return nullcontext()

    def reaches_large_offsets(self) -> bool:
        """Return False, as the GPU."""
        return False

    def arithmetic(self) -> frozenset[KernelArithmetic]:
        """Return nothing: no kernel runs."""
        return frozenset()

    def announce(self, compiling: Callable[[bool], None]) -> None:
        """Do nothing: launches do not compile."""

    def new_masks(self) -> tuple[Mask, ...]:
        """Return nothing: no kernel runs."""
        return ()

    def new_kernels(self) -> Kernels:
        """Return 0 kernels: launches do not compile."""
        return Kernels()
