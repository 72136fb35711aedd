"""What a launcher refuses before it launches: one exception, and the checks that every family shares.

A check reads shapes, dtypes, strides and host numbers only. Lengths, page numbers and scales live on the device, where
a look would cost a synchronisation: for them the caller's promise stands.
"""

import math
from collections.abc import Collection, Sequence

import torch

from .launch import MAX_TILE_SIZE, smallest_dot_size

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BIAS_DTYPES = (*FLOAT_DTYPES, torch.float64)
MAX_HEAD_SIZE = 256
MAX_QUERIES_PER_KV = 64


class ContractError(ValueError):
    """An argument that a kernel of this project does not promise to handle."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name as people write it, `float16` for `torch.float16`."""
    return str(dtype).removeprefix("torch.")


def require_tensor(name: str, value: object) -> None:
    """Refuse anything but a tensor."""
    if not isinstance(value, torch.Tensor):
        raise ContractError(f"{name} must be a torch.Tensor, not {type(value).__name__}")


def require_dtype(name: str, tensor: torch.Tensor, allowed: Collection[torch.dtype]) -> None:
    """Refuse a tensor whose dtype is not among `allowed`."""
    if tensor.dtype not in allowed:
        names = ", ".join(dtype_name(dtype) for dtype in allowed)
        raise ContractError(f"{name} has dtype {dtype_name(tensor.dtype)}, must be one of {names}")


def require_shape(name: str, tensor: torch.Tensor, shape: Sequence[int | None]) -> None:
    """Refuse a tensor of another shape; None leaves a dimension free."""
    actual = tuple(tensor.shape)
    if len(actual) == len(shape) and all(want in (None, have) for have, want in zip(actual, shape, strict=True)):
        return
    wanted = ", ".join("any" if want is None else str(want) for want in shape)
    raise ContractError(f"{name} has shape {actual}, must be ({wanted})")


def require_unit_stride(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor whose neighbours along the last dimension are not neighbours in memory."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ContractError(f"{name} has stride {tensor.stride(-1)} in its last dimension, must be 1")


def require_device(name: str, tensor: torch.Tensor, device: torch.device, other: str) -> None:
    """Refuse a tensor that lives elsewhere than the tensor called `other`."""
    if tensor.device != device:
        raise ContractError(f"{name} is on {tensor.device}, must be on {device} like {other}")


def require_range(name: str, value: int, low: int, high: int | None = None) -> None:
    """Refuse an integer outside of [low, high]."""
    if value < low:
        raise ContractError(f"{name}={value} must be at least {low}")
    if high is not None and value > high:
        raise ContractError(f"{name}={value} must be at most {high}")


def require_finite(name: str, value: object) -> None:
    """Refuse NaN, the infinities, and what is no number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ContractError(f"{name}={value} must be a finite number")


def require_one_element(name: str, tensor: torch.Tensor) -> None:
    """Refuse a scale that is not one float32 element, which may be expanded (stride 0) to any shape."""
    require_dtype(name, tensor, (torch.float32,))
    repeated = all(size == 1 or stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0 or not repeated:
        raise ContractError(f"{name} has shape {tuple(tensor.shape)}, must hold one element")


def check_tensors(required: dict[str, torch.Tensor], optional: dict[str, torch.Tensor | None]) -> None:
    """Refuse what is no tensor, or lives on another device than the first one, the queries."""
    given = required | {name: tensor for name, tensor in optional.items() if tensor is not None}
    first = next(iter(given))
    for name, tensor in given.items():
        require_tensor(name, tensor)
        require_device(name, tensor, given[first].device, first)


def check_heads(*, num_query_heads: int, num_kv_heads: int) -> None:
    """Refuse head counts of which some query heads would have no KV head, or more than 64 the same."""
    require_range("num_kv_heads", num_kv_heads, 1)
    require_range("num_query_heads", num_query_heads, 1)
    if num_query_heads % num_kv_heads:
        raise ContractError(f"{num_query_heads=} must be a multiple of {num_kv_heads=}")
    require_range("num_queries_per_kv", num_query_heads // num_kv_heads, 1, MAX_QUERIES_PER_KV)


def check_head_vector(name: str, tensor: torch.Tensor | None, num_query_heads: int) -> None:
    """Refuse slopes or sinks that are not one float for each query head."""
    if tensor is not None:
        require_dtype(name, tensor, BIAS_DTYPES)
        require_shape(name, tensor, (num_query_heads,))
        require_unit_stride(name, tensor)


def check_tile_size(tile_size: int | None, q_dtype: torch.dtype) -> None:
    """Refuse a number of keys in a tile that no dot product of q's dtype takes; None is a heuristic's choice."""
    if tile_size is not None:
        require_range("tile_size", tile_size, smallest_dot_size(q_dtype), MAX_TILE_SIZE)
        if tile_size & (tile_size - 1):
            raise ContractError(f"{tile_size=} must be a power of two")


def check_queries(
    names: tuple[str, str], q: torch.Tensor, out: torch.Tensor, q_dtypes: Collection[torch.dtype]
) -> None:
    """Refuse queries `[num_tokens, num_query_heads, head_size]`, and an output unless it has that shape or more rows.

    `names` are what the caller calls the two.
    """
    q_name, out_name = names
    require_dtype(q_name, q, q_dtypes)
    require_dtype(out_name, out, FLOAT_DTYPES + FP8_DTYPES)
    require_shape(q_name, q, (None, None, None))
    require_shape(out_name, out, (None, *q.shape[1:]))
    require_range(f"{out_name}.shape[0]", out.shape[0], q.shape[0])
    require_range("head_size", q.shape[2], 1, MAX_HEAD_SIZE)
    require_unit_stride(q_name, q)
    require_unit_stride(out_name, out)


def check_batch(
    names: tuple[str, str, str],
    query_start_loc: torch.Tensor | None,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
) -> None:
    """Refuse int32 metadata `[num_seqs + 1]`, `[num_seqs]`, `[num_seqs or more, max_blocks]` that does not fit.

    `names` are what the caller calls the three; one that needs no `query_start_loc` may have None.
    """
    start_name, lens_name, table_name = names
    if query_start_loc is not None:
        require_dtype(start_name, query_start_loc, (torch.int32,))
    require_dtype(lens_name, seq_lens, (torch.int32,))
    require_dtype(table_name, block_table, (torch.int32,))
    require_shape(lens_name, seq_lens, (None,))
    if query_start_loc is not None:
        require_shape(start_name, query_start_loc, (seq_lens.shape[0] + 1,))
        require_unit_stride(start_name, query_start_loc)
    require_shape(table_name, block_table, (None, None))
    require_range(f"{table_name}.shape[0]", block_table.shape[0], seq_lens.shape[0])
    require_unit_stride(lens_name, seq_lens)
    require_unit_stride(table_name, block_table)


def check_output_scale(names: tuple[str, str], output_scale: torch.Tensor | None, out: torch.Tensor) -> None:
    """Refuse a scale that is not one float32, is missing for an fp8 output, or would be ignored for another.

    `names` are what the caller calls the two.
    """
    scale_name, out_name = names
    if output_scale is not None:
        require_one_element(scale_name, output_scale)
    if (output_scale is not None) != (out.dtype in FP8_DTYPES):
        wanted = "None" if output_scale is not None else "given"
        raise ContractError(f"{scale_name} must be {wanted} for {out_name} of dtype {dtype_name(out.dtype)}")
