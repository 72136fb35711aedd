"""The cuda backend: kernels compiled for the GPU that torch sees. Only their output is checked."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fuzz_attn.backends.backend import Kernels, Watch
from fuzz_attn.backends.gpus import GpuFacts, gpu_facts, start_in_turn
from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.errors import BackendError, DeviceFullError, DeviceLostError, NotCompiledInterrupt

if TYPE_CHECKING:
    from fuzz_attn.ttir.kernel_arithmetic import KernelArithmetic

_DOT: Final = re.compile(r"tt\.dot (.*): tensor<[0-9x]+xf32> \*")
"""A dot of float32 operands in Triton's IR."""
_PRECISION: Final = re.compile(r"inputPrecision = (\w+)")
"""How it multiplies them; ``ieee`` is not written."""

_FAULTS: Final = (
    *("an illegal memory access was encountered", "misaligned address", "an illegal instruction was encountered"),
    *("unspecified launch failure", "device-side assert triggered", "hardware stack error", "invalid program counter"),
)
"""What CUDA says of a fault, after which a process can no longer use its GPU."""

MICROSECONDS: Final = 1e6
OTHERS_PART: Final = 0.5
"""A launch that finds no memory is not the target's fault where others hold more than this part of the GPU's memory."""
TENSOR_CORE_SLACK: Final = 2.0
"""Tensor cores truncate where they add: each addend at a bit or more below the last bit of the largest, then the sum.

Source: Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (2021), for Ampere; Hopper is
measured by tests/benchmarks/bench_dot_rounding.py. Let ``m`` products and an accumulator have the magnitude ``s`` in
sum. The truncations of the addends lose up to ``m`` times ``2^-24 s``, and that of the sum as much as one of them. This
is more than ``m`` and at most ``2 m`` units of 2^-24. tests/oracle/test_tensor_cores.py emulates it.
"""


def arithmetic_in(files: Mapping[str, str]) -> KernelArithmetic:
    """Return how a compiled kernel rounds, from its files by name."""
    from fuzz_attn.ttir.kernel_arithmetic import KernelArithmetic  # noqa: PLC0415 - imports torch

    texts = [Path(path).read_text(encoding="utf-8") for name, path in files.items() if name.endswith(".ttir")]
    return _arithmetic_of(texts[0]) if texts else KernelArithmetic()


def _arithmetic_of(text: str) -> KernelArithmetic:
    """Return the arithmetic of a kernel's IR; if the simulator cannot parse it, only how dots multiply float32."""
    from fuzz_attn.ttir.ir import parse_module  # noqa: PLC0415 - as above
    from fuzz_attn.ttir.kernel_arithmetic import Dot, KernelArithmetic, arithmetic_of  # noqa: PLC0415 - as above

    try:
        return arithmetic_of(parse_module(text))
    except Exception:  # noqa: BLE001 - the compiler's own text may have any form, and only the reading is lost
        found = map(_PRECISION.search, _DOT.findall(text))
        return KernelArithmetic(tuple(Dot(precision=precision[1] if precision else "ieee") for precision in found))


class CudaBackend:
    """Runs kernels on the first GPU that this process sees. When a context is left, its launches have ended."""

    name = "cuda"
    device = "cuda"
    sanitizers = False
    tensor_core_slack = TENSOR_CORE_SLACK
    forks_first = True
    compiles = True

    def __init__(self) -> None:
        self._kernels = Kernels()
        self._started = False
        self._arithmetic: set[KernelArithmetic] = set()
        self._compiling: Callable[[bool], None] = lambda ended: None

    def prepare(self) -> None:
        """Let Triton compile; raises :class:`BackendError` without a GPU, or if kernels are already interpreted."""
        if os.environ.pop("TRITON_INTERPRET", "0") == "1" and "fuzz_attn.kernels.unified_attention" in sys.modules:
            raise BackendError("backend='cuda' must be prepared before any kernel is imported")
        import torch  # noqa: PLC0415 - the command line starts without it

        if not torch.cuda.is_available():
            raise BackendError("backend='cuda' needs a GPU, and torch sees none")

    def start(self) -> None:
        """Initialise the GPU and Triton's driver; raises :class:`BackendError` if the GPU does not start."""
        import torch  # noqa: PLC0415 - as above
        from triton.runtime import driver  # noqa: PLC0415 - as above

        try:
            with nullcontext() if self._started else start_in_turn(os.environ):
                torch.zeros(1, device=self.device).item()
        except RuntimeError as error:
            raise BackendError(f"backend='cuda' cannot use its GPU: {error}") from error
        self._started = True
        with suppress(Exception):  # it needs a C compiler; where that fails, each launch says why
            driver.active.get_current_device()

    def notes(self) -> tuple[str, ...]:
        """Return nothing: kernels run as on every GPU."""
        return ()

    def gpu(self) -> GpuFacts:
        """Return the compute capability and the number of multiprocessors of the GPU."""
        return gpu_facts()

    def preflight(self) -> tuple[str, ...]:
        """Return no shims; raises :class:`BackendError` if the GPU computes wrongly or lacks a type."""
        from fuzz_attn.backends import preflight  # noqa: PLC0415 - decorates kernels, so only once prepared

        found = tuple(preflight.defects(self.device))
        if found:
            raise BackendError(f"backend='cuda' computes wrongly, or not at all: {', '.join(found)}")
        return ()

    @contextmanager
    def running(self) -> Iterator[Watch]:
        """Give the target poisoned scratch, and wait until the GPU has finished.

        Raises :class:`DeviceLostError` if the GPU has failed for good, so that this process cannot run anything, or
        reports a fault, which may be that of another client of a Multi-Process Service,
        :class:`DeviceFullError` if other processes have left too little memory, and :class:`NotCompiledInterrupt` for
        a kernel that may not be compiled here.
        """
        from fuzz_attn.backends.poisoned_scratch import PoisonedScratch  # noqa: PLC0415 - imports torch
        from fuzz_attn.ttir.compiler_compat import only_compiled_kernels  # noqa: PLC0415 - imports Triton, as above
        from fuzz_attn.ttir.triton_compat import compilations_announced, launches_counted  # noqa: PLC0415 - as above

        watch, scratch = Watch(), PoisonedScratch()
        try:
            counted = launches_counted(watch.count_launch)
            announced = compilations_announced(self._compiling)
            allowed = nullcontext() if self.compiles else only_compiled_kernels(_refuse_to_compile)
            with scratch, self._counting(), counted, announced, allowed:
                yield watch
        except RuntimeError as error:
            if _others_fill_gpu(error):
                raise DeviceFullError(str(error)) from error
            if says_lost(error):
                raise DeviceLostError(str(error)) from error
            raise
        finally:
            _wait()
            watch.observations.extend(scratch.observations())

    @contextmanager
    def unrecorded(self, *, own: bool = True) -> Iterator[None]:
        """Read nothing of kernels that are not the ``own``; no masks are recorded anyway."""
        known = self.arithmetic()
        yield
        if not own:
            self._arithmetic = set(known)

    def reaches_large_offsets(self) -> bool:
        """Return False: on a GPU every address takes memory, which workers share. A saved case runs if it fits."""
        return False

    def arithmetic(self) -> frozenset[KernelArithmetic]:
        """Return how each kernel launched so far rounds."""
        return frozenset(self._arithmetic)

    def announce(self, compiling: Callable[[bool], None]) -> None:
        """Call back before Triton compiles a kernel, with False, and when it has ended, with True."""
        self._compiling = compiling

    def new_masks(self) -> tuple[Mask, ...]:
        """Return nothing: the masks of a compiled kernel are not recorded."""
        return ()

    def new_kernels(self) -> Kernels:
        """Return how many kernels the targets' launches have compiled since the last call."""
        kernels, self._kernels = self._kernels, Kernels()
        return kernels

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count every kernel that Triton compiles or loads; another listener stays in effect."""
        from fuzz_attn.ttir.triton_compat import compilations_heard  # noqa: PLC0415 - imports Triton, as above

        def hear(event: dict[str, Any]) -> None:
            compiled, loaded, seconds = self._kernels
            if event["cache_hit"]:
                self._kernels = Kernels(compiled, loaded + 1, seconds)
            else:
                self._kernels = Kernels(compiled + 1, loaded, seconds + event["times"].total / MICROSECONDS)
            self._arithmetic.add(arithmetic_in(event["metadata_group"]))

        with compilations_heard(hear):
            yield


def _refuse_to_compile() -> None:
    raise NotCompiledInterrupt


def says_full(error: BaseException) -> bool:
    """Return whether an error of torch, Triton or the driver says that a GPU has no memory left."""
    text = str(error)
    return isinstance(error, RuntimeError) and "CUDA" in text and "out of memory" in text


def says_lost(error: BaseException) -> bool:
    """Return whether an error of torch, Triton or the driver names a fault on the GPU.

    Where clients share it, that of one may reach another as the error of a single call, after which the GPU answers.
    """
    return isinstance(error, RuntimeError) and any(fault in str(error) for fault in _FAULTS)


def _others_fill_gpu(error: BaseException) -> bool:
    """Return whether there was no memory left, and other processes hold most of it, so that the target is innocent."""
    import torch  # noqa: PLC0415 - as above

    if not says_full(error):
        return False
    with suppress(RuntimeError):
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved() > OTHERS_PART * total
    return False


def _wait() -> None:
    """Wait for the GPU; raise the error that it reports, as :class:`DeviceLostError` for a fault, or if it recurs."""
    import torch  # noqa: PLC0415 - as above

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        try:
            torch.cuda.synchronize()
            torch.zeros(1, device="cuda").item()
        except RuntimeError:
            raise DeviceLostError(str(error)) from error
        if says_lost(error):
            raise DeviceLostError(str(error)) from error
        raise
