"""The interpreter backend: Triton's own interpreter on the CPU, with its known defects fixed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

from fuzz_attn.backends.backend import Kernels, Watch, quiet
from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.errors import BackendError

if TYPE_CHECKING:
    from fuzz_attn.ttir.kernel_arithmetic import KernelArithmetic


class InterpreterBackend:
    """Runs kernels one program at a time, with ``TRITON_INTERPRET=1``."""

    name = "interpreter"
    device = "cpu"
    sanitizers = False
    tensor_core_slack = 1.0
    forks_first = False
    compiles = True

    def __init__(self) -> None:
        self._shims: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Select Triton's interpreter; raises :class:`BackendError` if kernels have been decorated for the compiler."""
        if os.environ.get("TRITON_INTERPRET") != "1" and "fuzz_attn.kernels.unified_attention" in sys.modules:
            raise BackendError("backend='interpreter' must be prepared before any kernel is imported")
        os.environ["TRITON_INTERPRET"] = "1"

    def start(self) -> None:
        """Do nothing: a CPU needs no initialisation."""

    def new_kernels(self) -> Kernels:
        """Return 0 kernels: nothing is compiled for the CPU."""
        return Kernels()

    def notes(self) -> tuple[str, ...]:
        """Return nothing: the shims are listed anyway."""
        return ()

    def gpu(self) -> None:
        """Return None: kernels run on the CPU."""

    def preflight(self) -> tuple[str, ...]:
        """Return the shims that the installed Triton needs; raises :class:`BackendError` where they are not enough."""
        self._shims = needed_shims()
        return self._shims

    @contextmanager
    def running(self) -> Iterator[Watch]:
        """Apply the shims, poison scratch, and silence numpy's warnings on Inf and NaN."""
        from fuzz_attn.backends import shims  # noqa: PLC0415 - imports Triton, so only once prepared
        from fuzz_attn.backends.poisoned_scratch import PoisonedScratch  # noqa: PLC0415 - imports torch
        from fuzz_attn.ttir.triton_compat import launches_counted  # noqa: PLC0415 - imports Triton, as above

        watch, scratch = Watch(), PoisonedScratch()
        launches = launches_counted(watch.count_launch)
        with quiet(), shims.quick_device_calls(), shims.applied(self._shims), launches, scratch:
            yield watch
        watch.observations.extend(scratch.observations())

    def unrecorded(self, *, own: bool = True) -> AbstractContextManager[None]:
        """Return a context that changes nothing: no masks are recorded anyway."""
        return nullcontext()

    def reaches_large_offsets(self) -> bool:
        """Return whether the machine provides so many addresses, which take no memory."""
        from fuzz_attn.inputs.storage import reaches_large_offsets  # noqa: PLC0415 - imports torch

        return reaches_large_offsets()

    def arithmetic(self) -> frozenset[KernelArithmetic]:
        """Return nothing: the interpreter lowers no kernel."""
        return frozenset()

    def announce(self, compiling: Callable[[bool], None]) -> None:
        """Do nothing: nothing is compiled for the CPU."""

    def new_masks(self) -> tuple[Mask, ...]:
        """Return nothing: the interpreter does not record masks."""
        return ()


@cache
def needed_shims() -> tuple[str, ...]:
    """Return the shims that the installed Triton needs, looked for once; see :mod:`fuzz_attn.backends.preflight`."""
    from fuzz_attn.backends import preflight, shims  # noqa: PLC0415 - decorates kernels, so only once prepared

    with quiet(), shims.contained():
        needed = shims.needed((*preflight.defects("cpu"), *preflight.operator_defects()))
        with shims.applied(needed):
            left = (*preflight.defects("cpu"), *preflight.operator_defects())
    if left:
        raise BackendError(f"backend='interpreter' computes wrongly, and no shim fixes it: {', '.join(left)}")
    return needed
