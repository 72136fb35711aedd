"""The cuda backend: kernels compiled for the GPU that torch sees, which tells no more than what comes out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from fuzz_attn.backends.backend import Kernels, Watch
from fuzz_attn.coverage.mask_coverage import Mask
from fuzz_attn.errors import BackendError, DeviceLostError

TENSOR_CORE_SLACK: Final = 2.0
"""Tensor cores truncate where they add: each addend to a bit or more behind the last of the largest, then the sum.

Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (2021), for Ampere; Hopper is measured
by tests/benchmarks/bench_dot_rounding.py. Where ``m`` products and an accumulator are of size ``s`` together, each cut
loses up to ``2^-24 s``, and the sum of what is left as much again: ``m + 1`` units of 2^-24, which is more than ``m``
and at most ``2 m``. tests/oracle/test_tensor_cores.py emulates it.
"""


class CudaBackend:
    """Runs kernels on the first GPU that this process sees; a launch has ended when its context is left."""

    name = "cuda"
    device = "cuda"
    sanitizers = False
    tensor_core_slack = TENSOR_CORE_SLACK
    forks_first = True

    def __init__(self) -> None:
        self._kernels = Kernels()

    def prepare(self) -> None:
        """Let Triton compile; raises :class:`BackendError` without a GPU, or where kernels are interpreted already."""
        if os.environ.pop("TRITON_INTERPRET", "0") == "1" and "fuzz_attn.kernels.unified_attention" in sys.modules:
            raise BackendError("backend='cuda' must be prepared before any kernel is imported")
        import torch  # noqa: PLC0415 - the package's command line does not load it

        if not torch.cuda.is_available():
            raise BackendError("backend='cuda' needs a GPU, and torch sees none")

    def start(self) -> None:
        """Wake the GPU; raises :class:`BackendError` where it does not answer."""
        import torch  # noqa: PLC0415 - as above

        try:
            torch.zeros(1, device=self.device).item()
        except RuntimeError as error:
            raise BackendError(f"backend='cuda' cannot use its GPU: {error}") from error

    def preflight(self) -> tuple[str, ...]:
        """Return no shims; raises :class:`BackendError` where the GPU computes wrongly or cannot compute a type."""
        from fuzz_attn.backends import preflight  # noqa: PLC0415 - decorates kernels, so only once prepared

        found = tuple(preflight.defects(self.device))
        if found:
            raise BackendError(f"backend='cuda' computes wrongly, or not at all: {', '.join(found)}")
        return ()

    @contextmanager
    def running(self) -> Iterator[Watch]:
        """Give the target poisoned scratch, and wait until the GPU has done all it was asked for.

        Raises :class:`DeviceLostError` where the GPU answers no more: nothing else can be run in this process then.
        """
        from fuzz_attn.backends.scratch import PoisonedScratch  # noqa: PLC0415 - imports torch

        watch, scratch = Watch(), PoisonedScratch()
        try:
            with scratch, self._counting():
                yield watch
        finally:
            _wait()
            watch.observations.extend(scratch.observations())

    def reaches_large_offsets(self) -> bool:
        """Return no: on a GPU every address takes memory, and workers share it. A saved case runs if there is room."""
        return False

    def new_masks(self) -> tuple[Mask, ...]:
        """Return nothing: a compiled kernel shows no masks."""
        return ()

    def new_kernels(self) -> Kernels:
        """Return what the targets' launches have compiled since the last call."""
        kernels, self._kernels = self._kernels, Kernels()
        return kernels

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Hear of every kernel that Triton makes ready, beside whoever else listens."""
        from triton import knobs  # noqa: PLC0415 - imports Triton, so only once prepared

        before = knobs.compilation.listener

        def listen(**told: Any) -> None:
            new = Kernels(compiled=not told["cache_hit"], loaded=told["cache_hit"])
            self._kernels = Kernels(*(old + more for old, more in zip(self._kernels, new, strict=True)))
            if before is not None:
                before(**told)

        knobs.compilation.listener = listen
        try:
            yield
        finally:
            knobs.compilation.listener = before


def _wait() -> None:
    """Wait for the GPU; raise what it reports, as :class:`DeviceLostError` if it goes on reporting it."""
    import torch  # noqa: PLC0415 - as above

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        try:
            torch.cuda.synchronize()
            torch.zeros(1, device="cuda").item()
        except RuntimeError:
            raise DeviceLostError(str(error)) from error
        raise
