"""Far rows: tensors whose rows lie so far apart that only the rows and what is around them have memory."""

from __future__ import annotations

import torch

from fuzz_attn.case.parts import FAR_GAP
from fuzz_attn.inputs.storage import GUARD_BYTES, Bits, reserved, tensors_over


def rows_tensor(memory: Bits, view: Bits, dtype: torch.dtype, device: str, gap: int) -> torch.Tensor:
    """Return the tensor of a view of rows; after each row there are ``gap`` elements more than in the view if far."""
    if gap < FAR_GAP:
        return tensors_over(memory, (view,), dtype, device)[0]
    near = tensors_over(memory, (view,), dtype, "cpu")[0]
    return far_apart(near, view.strides[0] // view.itemsize + gap, device)


def far_apart(near: torch.Tensor, stride: int, device: str) -> torch.Tensor:
    """Return a tensor like a guarded one on the CPU, its rows ``stride`` elements apart, each between guards."""
    size, rows = near.element_size(), near.shape[0]
    width = near.stride(0) * size
    existing = storage_of(near)
    whole = reserved(max(rows - 1, 0) * stride * size + 2 * GUARD_BYTES + width, device)
    live = whole.as_strided((rows, 2 * GUARD_BYTES + width), (stride * size, 1))
    guard = existing[:GUARD_BYTES].to(device)
    live[:, :GUARD_BYTES] = guard
    live[:, GUARD_BYTES:-GUARD_BYTES] = existing[GUARD_BYTES:-GUARD_BYTES].view(rows, width).to(device)
    live[:, -GUARD_BYTES:] = guard
    return whole.view(near.dtype).as_strided(near.shape, (stride, *near.stride()[1:]), near.storage_offset())


def has_far_rows(tensor: torch.Tensor) -> bool:
    """Return whether only the rows of a tensor, and the guards around each, have memory."""
    if tensor.dim() < 2 or tensor.stride(0) < FAR_GAP:
        return False
    return tensor.untyped_storage().nbytes() <= tensor.shape[0] * tensor.stride(0) * tensor.element_size()


def storage_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return all addresses of the storage of a tensor as uint8, without a copy."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def live_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor with far rows, uint8 ``[rows, bytes]``: each row and the guards around it."""
    whole, rows = storage_of(tensor), tensor.shape[0]
    stride = tensor.stride(0) * tensor.element_size()
    return whole.as_strided((rows, whole.numel() - (rows - 1) * stride), (stride, 1))


def row_width(tensor: torch.Tensor) -> int:
    """Return the elements of a row of a guarded tensor that have memory, the padding of its heads included."""
    if not has_far_rows(tensor):
        return tensor.stride(0)
    return (live_rows(tensor).shape[1] - 2 * GUARD_BYTES) // tensor.element_size()


def elements_in(copy: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor in a dense copy of its memory, as a view of the copy in the tensor's type."""
    held = copy.view(tensor.dtype)
    rows = tensor.stride(0) if held.dim() == 1 else held.stride(0)
    return held.as_strided(tensor.shape, (rows, *tensor.stride()[1:]), tensor.storage_offset())
