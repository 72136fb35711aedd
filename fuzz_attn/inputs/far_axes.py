"""Far axes: tensors that span 2^31 elements along one axis, of which only the elements have memory.

Such a tensor consists of pieces, one for each index of the axis. Each piece holds the elements of its index, with the
strides that the tensor had, between guards.
"""

from __future__ import annotations

from typing import Final

import torch

from fuzz_attn.inputs.dtypes import bits_of
from fuzz_attn.inputs.storage import GUARD_BYTES, reserved, storage_of

REACH: Final = 2**31
"""How many elements the last indices of a far axis lie behind the first one, at least."""
FAR: Final = 2**24
"""A stride of more elements is that of a far axis; no tensor in memory is so large in one index."""
STEP: Final = 16
"""A stride changes by a multiple of it, so that it stays as divisible as it was and no other code is compiled."""


def stride_of(near: torch.Tensor, axis: int, live: int) -> int:
    """Return a stride with which about half of ``live`` indices lie beyond 2^31, and the last of two or three.

    Not only the last one, because few rows may use it: it may be the last slot of a page. The present stride where
    there is only one index.
    """
    first = max(live // 2, min(live - 1, 2))
    gap = -(-REACH // (STEP * first)) * STEP if first else 0
    return near.stride(axis) + gap


def spread(near: torch.Tensor, axis: int, stride: int) -> torch.Tensor:
    """Return a guarded tensor with another, longer stride along one axis, between whose indices there is no memory."""
    count, size = near.shape[axis], near.element_size()
    if count < 2 or not near.numel() or stride == near.stride(axis):
        return near
    held = storage_of(near)
    width = held.numel() - (count - 1) * near.stride(axis) * size
    whole = reserved((count - 1) * stride * size + width, str(near.device))
    pieces = whole.as_strided((count, width), (stride * size, 1))
    pieces[:] = held[:size].repeat(width // size)
    strides = [stride if index == axis else each for index, each in enumerate(near.stride())]
    far = whole.view(near.dtype).as_strided(near.shape, strides, near.storage_offset())
    bits_of(far).copy_(bits_of(near))
    return far


def far_axis(tensor: torch.Tensor) -> int | None:
    """Return the axis along which only the elements of a tensor, and the guards around them, have memory."""
    strides = tensor.stride()
    longest = max(strides, default=0)
    if len(strides) < 2 or longest < FAR:
        return None
    axis = strides.index(longest)
    span = tensor.shape[axis] * longest * tensor.element_size()
    return axis if tensor.untyped_storage().nbytes() <= span else None


def pieces_of(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the memory of a tensor with a far axis, uint8 ``[indices, bytes]``: each piece with its guards."""
    whole, count = storage_of(tensor), tensor.shape[axis]
    stride = tensor.stride(axis) * tensor.element_size()
    return whole.as_strided((count, whole.numel() - (count - 1) * stride), (stride, 1))


def elements_in(copy: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor in a dense copy of its memory, as a view of the copy in the tensor's type."""
    held, axis = copy.view(tensor.dtype), far_axis(tensor)
    strides = [held.stride(0) if index == axis else each for index, each in enumerate(tensor.stride())]
    return held.as_strided(tensor.shape, strides, tensor.storage_offset())


def with_rows(like: torch.Tensor, held: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a tensor with the strides of ``like``; its first rows are the bits ``held``, the rest is its poison."""
    axis, margin = far_axis(like), GUARD_BYTES // like.element_size()
    strides = list(like.stride())
    if axis == 0:
        strides[0] = pieces_of(like, 0).shape[1] // like.element_size() - 2 * margin
    elif axis is not None:
        strides[axis] = strides[0] // like.shape[axis]
    poison = bits_of(storage_of(like)[: like.element_size()].view(like.dtype))
    memory = poison.repeat(2 * margin + rows * strides[0])
    near = memory.as_strided((rows, *like.shape[1:]), strides, margin)
    near[: held.shape[0]] = held
    changed = near.view(like.dtype)
    return changed if axis is None else spread(changed, axis, like.stride(axis))
