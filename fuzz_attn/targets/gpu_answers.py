"""GPU answers: what a launcher is told about the GPU on a machine without one.

Launchers ask for the GPU before they launch: whether a tensor is on it, its capability, the number of its
multiprocessors, Triton's driver. They also allocate scratch with ``device="cuda"``. Within :func:`gpu_answers` each
question gets the answer of an H100, and memory of the GPU is memory of the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

CAPABILITY: Final = (9, 0)
MULTIPROCESSORS: Final = 132
PROPERTIES: Final = SimpleNamespace(
    name="NVIDIA H100 (simulated by fuzz_attn)",
    major=CAPABILITY[0],
    minor=CAPABILITY[1],
    multi_processor_count=MULTIPROCESSORS,
    total_memory=80 * 2**30,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 * 2**20,
    is_integrated=0,
    gcnArchName="",
)
_DRIVER_PROPERTIES: Final = {
    "max_shared_mem": 232448,
    "max_num_regs": 65536,
    "multiprocessor_count": MULTIPROCESSORS,
    "warpSize": 32,
    "sm_clock_rate": 1980000,
    "mem_clock_rate": 2619000,
    "mem_bus_width": 5120,
}


class Gpu(NamedTuple):
    """What tells one GPU from another for launchers and for Triton's compiler."""

    capability: tuple[int, int] = CAPABILITY
    multiprocessors: int = MULTIPROCESSORS


H100: Final = Gpu()


class OnCpu(TorchFunctionMode):
    """Says that every tensor is on the GPU, and keeps all of them on the CPU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer a question about a tensor's device, or call a function with the CPU in place of the GPU."""
        kwargs = kwargs or {}
        if func == _IS_CUDA:
            return True
        if func is torch.Tensor.cuda or func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.is_pinned:
            return True
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _cpu(kwargs["device"])}
        if "pin_memory" in kwargs:
            kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        if func is torch.Tensor.to:
            args = tuple(_cpu(value) for value in args)
        return func(*args, **kwargs)


_IS_CUDA: Final = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined] # torch declares it as a bool


def _cpu(device: Any) -> Any:
    """Return the CPU for a device of CUDA in any form, anything else unchanged."""
    if isinstance(device, int) and not isinstance(device, bool):
        return "cpu"
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type == "cuda" else device
    return "cpu" if isinstance(device, str) and device.partition(":")[0] == "cuda" else device


class Driver:
    """Triton's driver of a GPU that is not there."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        properties = {**_DRIVER_PROPERTIES, "multiprocessor_count": gpu.multiprocessors}
        self.utils = SimpleNamespace(get_device_properties=lambda device: dict(properties))

    def get_current_target(self) -> Any:
        """Return the target of the GPU."""
        from triton.backends.compiler import GPUTarget  # noqa: PLC0415 - the backend prepares Triton first

        return GPUTarget("cuda", self._gpu.capability[0] * 10 + self._gpu.capability[1], 32)

    def get_current_device(self) -> int:
        """Return the number of the only GPU."""
        return 0

    def set_current_device(self, device: int) -> None:
        """Do nothing: there is only one."""

    def get_current_stream(self, device: int = 0) -> int:
        """Return the default stream."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Return the device of the tensors."""
        return torch.device("cpu")

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Return the capability of the GPU."""
        return self._gpu.capability

    def get_device_interface(self) -> Any:
        """Return torch's module for the device."""
        return torch.cuda

    @classmethod
    def is_active(cls) -> bool:
        """Return True: there is a driver."""
        return True


def _is_available() -> bool:
    return True


_CUDA: Final[dict[str, Callable[..., Any]]] = {
    "is_available": _is_available,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "synchronize": lambda device=None: None,
    "empty_cache": lambda: None,
    "get_device_name": lambda device=None: PROPERTIES.name,
    "is_current_stream_capturing": lambda: False,
    "current_stream": lambda device=None: SimpleNamespace(cuda_stream=0, synchronize=lambda: None),
    "device": lambda device=None: ExitStack(),
}
"""Functions of ``torch.cuda`` and their answers, the same for each GPU."""


def answering() -> bool:
    """Return whether questions about a GPU are answered here."""
    return vars(torch.cuda).get("is_available") is _is_available


def _answers_of(gpu: Gpu) -> dict[str, Callable[..., Any]]:
    """Return the functions of ``torch.cuda`` whose answers differ between GPUs."""
    major, minor = gpu.capability
    found = {**vars(PROPERTIES), "major": major, "minor": minor, "multi_processor_count": gpu.multiprocessors}
    properties = SimpleNamespace(**found)
    return {
        "get_device_capability": lambda device=None: gpu.capability,
        "get_device_properties": lambda device=None: properties,
    }


@contextmanager
def gpu_answers(gpu: Gpu = H100) -> Iterator[None]:
    """Answer every question about a GPU as an H100 would, or another one of its kind; on exit all is as before."""
    from triton.runtime import driver  # noqa: PLC0415 - the backend prepares Triton first

    answers = {**_CUDA, **_answers_of(gpu)}
    before = {name: getattr(torch.cuda, name) for name in answers}
    vars(torch.cuda).update(answers)
    driver.set_active(Driver(gpu))
    try:
        with OnCpu():
            yield
    finally:
        vars(torch.cuda).update(before)
        driver.set_active(None)  # Triton looks for the active one again
