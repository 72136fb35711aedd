"""Uninitialised reads: for buffers from `torch.empty`, shadows of the elements that have been written."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.simulator.torch_compat import DispatchMode, written_arguments

_CREATORS = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}


@dataclass(slots=True)
class _Shadow:
    written: npt.NDArray[np.bool_]
    itemsize: int
    alive: weakref.ref[torch.UntypedStorage]
    complete: bool = False


class Shadows:
    """The shadows of all uninitialised storages of a session, by address."""

    def __init__(self) -> None:
        self._shadows: dict[int, _Shadow] = {}

    def __bool__(self) -> bool:
        return bool(self._shadows)

    def add(self, tensor: torch.Tensor) -> None:
        """Mark all elements of the tensor's storage as not written."""
        storage = tensor.untyped_storage()
        size = storage.nbytes() // tensor.element_size()
        if size:
            written = np.zeros(size, np.bool_)
            self._shadows[storage.data_ptr()] = _Shadow(written, tensor.element_size(), weakref.ref(storage))

    def forget(self, tensor: torch.Tensor) -> None:
        """Mark the elements of a tensor as not written; those around it stay as they are."""
        storage = tensor.untyped_storage()
        if self._at(tensor) is None:
            written = np.ones(storage.nbytes() // tensor.element_size(), np.bool_)
            self._shadows[storage.data_ptr()] = _Shadow(written, tensor.element_size(), weakref.ref(storage))
        view = self._shadows[storage.data_ptr()].written[tensor.storage_offset() :]
        np.lib.stride_tricks.as_strided(view, tuple(tensor.shape), tuple(tensor.stride()))[...] = False

    def _at(self, tensor: torch.Tensor) -> _Shadow | None:
        """Return the shadow of the tensor's storage, unless it is complete or belonged to a storage that was freed."""
        address = tensor.untyped_storage().data_ptr()
        shadow = self._shadows.get(address)
        if shadow is None or shadow.complete:
            return None
        if shadow.alive() is None:
            del self._shadows[address]
            return None
        return shadow

    def find(self, tensor: torch.Tensor) -> npt.NDArray[np.bool_] | None:
        """Return the shadow from the tensor's first element on; None if it is not watched or completely written."""
        shadow = self._at(tensor)
        if shadow is None or shadow.itemsize != tensor.element_size():
            return None
        if shadow.written.all():
            shadow.complete = True
            return None
        return shadow.written[tensor.storage_offset() :]

    def write(self, tensor: torch.Tensor) -> None:
        """Mark every element of the tensor as written."""
        shadow = self._at(tensor)
        if shadow is None:
            return
        if shadow.itemsize != tensor.element_size():
            shadow.complete = True
            return
        view = shadow.written[tensor.storage_offset() :]
        if tensor.numel():
            strides = tuple(tensor.stride())
            np.lib.stride_tricks.as_strided(view, tuple(tensor.shape), strides)[...] = True


class EmptyWatcher(DispatchMode):
    """While active, records tensors from `torch.empty` and its variants, and what torch itself writes to them."""

    def __init__(self, shadows: Shadows) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._shadows = shadows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        if func in _CREATORS:
            if isinstance(result, torch.Tensor) and result.device.type == "cpu":
                self._shadows.add(result)
        elif self._shadows:
            for index, name in written_arguments(func):
                value = args[index] if index < len(args) else (kwargs or {}).get(name)
                if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                    self._shadows.write(value)
        return result
