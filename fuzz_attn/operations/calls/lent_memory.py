"""Lent memory: the tensors that a target gets in a sequence of calls, in the memory of earlier calls or apart from it.

The harness makes and judges tensors of its own for each call. Between them and the target stands a :class:`Lender`. It
copies the bytes of each tensor's storage into memory that the target may have seen before, and what the call leaves
there back. So every check of the harness's tensors holds for what the target got: guards, inputs that must not change,
elements that must be written.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import torch

from fuzz_attn.inputs.storage import storage_of
from fuzz_attn.operations.calls.call_case import Storage

LARGEST: Final = 2**26
"""Bytes of a storage that is lent. One that is larger may mostly be addresses without memory, and is given as it is."""
_OWN_REFERENCES: Final = 2
"""References to memory that no tensor uses: that of its block, and that of the call which counts them."""


class Middle(Protocol):
    """Where a call runs, and what happens in its middle."""

    def around(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call."""


class DeviceMemory:
    """Memory of a GPU, which tensors use that torch makes of CUDA's array interface; each of them refers to it.

    It is not taken with ``torch.empty``: while a target runs, that gives a part of a larger memory between guards.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._taken = torch.zeros(size, dtype=torch.uint8, device=device)
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (self._taken.data_ptr(), False),
            "version": 2,
        }


class Block:
    """Memory that is lent, as bytes. An object below the tensor tells by its references whether a target uses it."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._device = device
        self._memory = np.empty(size, np.uint8) if device.type == "cpu" else DeviceMemory(size, device)
        self.bytes = self._new()
        self.is_filled = False

    def _new(self) -> torch.Tensor:
        """Return a new storage over the same memory."""
        if isinstance(self._memory, np.ndarray):
            return torch.from_numpy(self._memory)
        return torch.as_tensor(self._memory, device=self._device)  # which is no copy: it is there

    def free(self) -> bool:
        """Let new tensors have the memory; return whether that is possible, because no tensor has it any more."""
        self.bytes = torch.empty(0)
        free = sys.getrefcount(self._memory) <= _OWN_REFERENCES
        self.bytes = self._new()
        return free


class Given(NamedTuple):
    """A tensor as the target gets it, the block that it is a view of, and the harness's own storage, as bytes."""

    tensor: torch.Tensor
    block: Block
    own: torch.Tensor


class Lender:
    """Calls a target with lent memory: in place of its ``call``, whose signature it has."""

    def __init__(self, call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, call)
        self._call = call
        self._given: dict[str, Given] = {}
        self._in_use: list[Block] = []
        """Blocks of earlier calls, whose addresses no tensor of a later one gets."""
        self._next: tuple[Storage, int, Middle | None] | None = None

    def prepare(self, storage: Storage, *, raises: int = 0, middle: Middle | None = None) -> None:
        """Let the next call have memory of a kind, and run where and how the ``middle`` says.

        One that ``raises`` gets None in the place of a tensor, the first from the last one on.
        """
        self._next = storage, raises, middle

    def __call__(self, *positional: Any, **arguments: Any) -> Any:
        """Return the result of the call; one that was not prepared gets the harness's own tensors."""
        if self._next is None:
            return self._call(*positional, **arguments)
        (storage, raises, middle), self._next = self._next, None
        given = self._lend({name: value for name, value in arguments.items() if _is_lent(value)}, storage)
        handed: dict[str, Any] = {name: each.tensor for name, each in given.items()}
        if raises:
            handed[list(handed)[-1 - (raises - 1) % len(handed)]] = None

        def call() -> Any:
            _fill(given.values())  # here, so that it is done in the stream of the call
            return self._call(*positional, **{**arguments, **handed})

        try:
            result = call() if middle is None else middle.around(call)
        finally:
            if any(each.own.is_cuda for each in given.values()):
                torch.cuda.synchronize()  # also what the target launched in other streams, as after a single call
            for each in given.values():
                each.own.copy_(each.block.bytes)
        return _own_of(result, given)

    def _lend(self, tensors: dict[str, torch.Tensor], storage: Storage) -> dict[str, Given]:
        """Return the tensors of a call, each in the memory of its namesake before where it has the same layout."""
        before, self._given = self._given, {}
        same = set() if storage == "fresh" else _alike(tensors, before)
        blocks = {_address(tensors[name]): before[name].block for name in same}
        old = {name: before[name].tensor for name in same if storage != "address"}
        self._in_use += [each.block for name, each in before.items() if name not in same]
        before.clear()
        if storage == "address":
            still_used = {address for address, block in blocks.items() if not block.free()}
            self._in_use += [blocks.pop(address) for address in still_used]
        for name, tensor in tensors.items():
            own, address = storage_of(tensor), _address(tensor)
            if address not in blocks:
                blocks[address] = Block(own.numel(), tensor.device)
            block, view = blocks[address], old.get(name)
            self._given[name] = Given(_view(tensor, block.bytes) if view is None else view, block, own)
        return dict(self._given)


def _own_of(result: Any, given: dict[str, Given]) -> Any:
    """Return a result with the harness's own memory in the place of what was lent."""
    if type(result) in (tuple, list):
        return type(result)(_own_of(each, given) for each in result)
    if _is_lent(result):
        for each in given.values():
            if _address(result) == _address(each.tensor):
                return _view(result, each.own)
    return result


def _is_lent(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return 0 < value.untyped_storage().nbytes() <= LARGEST


def _alike(tensors: dict[str, torch.Tensor], before: dict[str, Given]) -> set[str]:
    """Return which tensors have the layout of their namesakes before; none where they share memory in another way."""
    same = {name for name in tensors if name in before and _layout(tensors[name]) == _layout(before[name].tensor)}
    pairs = {(_address(tensors[name]), _address(before[name].tensor)) for name in same}
    one_to_one = len({new for new, _ in pairs}) == len({old for _, old in pairs}) == len(pairs)
    return same if one_to_one else set()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    size = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, size


def _view(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the layout of another one over other memory."""
    return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _fill(given: Iterable[Given]) -> None:
    """Copy the harness's own bytes into lent memory, and let torch know which tensors have other contents now."""
    changed: set[int] = set()
    for each in given:
        block = each.block
        if not block.is_filled or not torch.equal(block.bytes, each.own):
            block.bytes.copy_(each.own)
            block.is_filled = True
            changed.add(id(block))
        if id(block) in changed:
            torch.autograd.graph.increment_version(each.tensor)
