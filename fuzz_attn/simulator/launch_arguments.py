"""The arguments of a launch as its program takes them: memories of tensors, arrays of numbers."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch

from fuzz_attn.errors import SimulatorError
from fuzz_attn.simulator.runtime.float_formats import STORAGE
from fuzz_attn.simulator.runtime.memory import Memory
from fuzz_attn.simulator.sanitizers.access_checks import Layout
from fuzz_attn.simulator.sanitizers.races import RaceTracker
from fuzz_attn.simulator.sanitizers.uninitialised import Shadows
from fuzz_attn.ttir.argument_types import Bound
from fuzz_attn.ttir.lowering import SCALAR_TYPES, TORCH_TYPES
from fuzz_attn.ttir.triton_compat import reinterpreted_type

_VIEWED: Final = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.int8, torch.float8_e5m2: torch.int8}
"""Types that numpy does not know, and as what it sees their elements."""
FAR_STRIDE: Final = 2**20
"""The least stride, in elements, of rows that are tracked without what lies between them."""


def scalar_key(bound: Bound) -> tuple[object, ...]:
    """Return the numbers of a launch; floats by their text, since 0.0 equals -0.0 and NaN does not equal itself."""
    values = [value for (_, type_), value in zip(bound.form.passed, bound.passed, strict=True) if type_[0] != "*"]
    return tuple([value if value.__class__ is int else repr(value) for value in values])


def scalars(bound: Bound) -> list[Any]:
    """Return an array for each number and None for each tensor."""
    arguments = zip(bound.form.passed, bound.passed, strict=True)
    return [None if type_[0] == "*" else _scalar(value, type_) for (_, type_), value in arguments]


def _scalar(value: Any, type_: str) -> Any:
    dtype = SCALAR_TYPES[type_]
    array = np.array([value], dtype)
    return array.view(f"i{dtype.itemsize}") if dtype.kind == "u" else array


def memory_of(name: str, value: Any, shadows: Shadows) -> Memory:
    """Return the memory of a tensor argument, with its shadow if it has one.

    Raises SimulatorError for a tensor that is not on the CPU.
    """
    tensor = value if isinstance(value, torch.Tensor) else _reinterpreted(value)
    if not tensor.is_cpu:
        raise SimulatorError(f"argument {name!r} is on {tensor.device}; the simulator runs on CPU tensors")
    layout = _layout(tensor.shape, tensor.stride())
    element = TORCH_TYPES[tensor.dtype][1]
    memory = Memory(name, _flat(tensor, layout, element), element, layout)
    memory.address = tensor.data_ptr()
    memory.shift = int(tensor.storage_offset())
    memory.storage = (tensor.untyped_storage().data_ptr(), memory.flat.itemsize)
    if shadows:
        memory.written = shadows.find(tensor)
    return memory


def watch_races(memories: list[Memory], stored: Iterable[Memory]) -> None:
    """Give a race tracker to the memories that share a storage with one of those in which the launch stores."""
    for storage in {memory.storage for memory in stored} - {None}:
        sharing = [memory for memory in memories if memory.storage == storage]
        tracker = _tracker(sharing)
        for memory in sharing:
            memory.tracker = tracker


def _tracker(sharing: list[Memory]) -> RaceTracker:
    """Return the tracker of a storage; where its tensors have rows far apart, only their rows take memory."""
    size = max(memory.shift + memory.extent for memory in sharing)
    stride = max(memory.layout.levels[0][0] if memory.layout.levels else 1 for memory in sharing)
    if stride < FAR_STRIDE:
        return RaceTracker(size)
    width = max(memory.shift % stride + (memory.extent - 1) % stride + 1 for memory in sharing)
    return RaceTracker(size, stride, width) if width < stride else RaceTracker(size)


@functools.lru_cache(maxsize=4096)
def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    return Layout(tuple(shape), tuple(strides))


def _flat(tensor: torch.Tensor, layout: Layout, element: str) -> Any:
    """Return the storage from a tensor's first element to its last one, without a copy."""
    if layout.empty:
        return np.zeros(0, STORAGE[element])
    elements = tensor.detach() if tensor.requires_grad else tensor
    if not elements.is_contiguous():
        elements = elements.as_strided((layout.extent,), (1,))
    viewed = _VIEWED.get(tensor.dtype)
    if viewed is not None:
        elements = elements.view(viewed)
    return elements.numpy().reshape(-1).view(STORAGE[element])


def _reinterpreted(wrapper: Any) -> torch.Tensor:
    """Return the tensor inside the wrapper that `triton.reinterpret` returns, viewed as its other type."""
    name = reinterpreted_type(wrapper)
    for dtype, (triton_name, _) in TORCH_TYPES.items():
        if triton_name == name:
            base: torch.Tensor = wrapper.base
            return base.view(dtype)
    raise SimulatorError(f"a tensor reinterpreted as {name} is not supported")
