"""The checks of a launcher's arguments that all families share, and the exception that they raise.

A check reads shapes, dtypes, strides and host numbers only. Lengths, page numbers and scales are on the device, and
reading them would cost a synchronisation: the caller promises that they are valid.
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
    """An argument is outside of a launcher's contract."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's short name, `float16` for `torch.float16`."""
    return str(dtype).removeprefix("torch.")


def require_tensor(name: str, value: object) -> None:
    """Raise ContractError unless `value` is a tensor."""
    if not isinstance(value, torch.Tensor):
        raise ContractError(f"{name} must be a torch.Tensor, not {type(value).__name__}")


def require_dtype(name: str, tensor: torch.Tensor, allowed: Collection[torch.dtype]) -> None:
    """Raise ContractError unless the tensor's dtype is in `allowed`."""
    if tensor.dtype not in allowed:
        names = ", ".join(dtype_name(dtype) for dtype in allowed)
        raise ContractError(f"{name} has dtype {dtype_name(tensor.dtype)}, must be one of {names}")


def require_shape(name: str, tensor: torch.Tensor, shape: Sequence[int | None]) -> None:
    """Raise ContractError unless the tensor has this shape; None allows any size of a dimension."""
    actual = tuple(tensor.shape)
    if len(actual) == len(shape) and all(want in (None, have) for have, want in zip(actual, shape, strict=True)):
        return
    wanted = ", ".join("any" if want is None else str(want) for want in shape)
    raise ContractError(f"{name} has shape {actual}, must be ({wanted})")


def require_unit_stride(name: str, tensor: torch.Tensor) -> None:
    """Raise ContractError unless the last dimension has stride 1; with one element any stride is allowed."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ContractError(f"{name} has stride {tensor.stride(-1)} in its last dimension, must be 1")


def require_device(name: str, tensor: torch.Tensor, device: torch.device, other: str) -> None:
    """Raise ContractError unless the tensor is on `device`, where the tensor called `other` is."""
    if tensor.device != device:
        raise ContractError(f"{name} is on {tensor.device}, must be on {device} like {other}")


def require_range(name: str, value: int, low: int, high: int | None = None) -> None:
    """Raise ContractError unless low <= value <= high."""
    if value < low:
        raise ContractError(f"{name}={value} must be at least {low}")
    if high is not None and value > high:
        raise ContractError(f"{name}={value} must be at most {high}")


def require_finite(name: str, value: object) -> None:
    """Raise ContractError unless `value` is a finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ContractError(f"{name}={value} must be a finite number")


def require_one_element(name: str, tensor: torch.Tensor) -> None:
    """Raise ContractError unless the tensor is one float32 element, possibly expanded (stride 0) to any shape."""
    require_dtype(name, tensor, (torch.float32,))
    repeated = all(size == 1 or stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0 or not repeated:
        raise ContractError(f"{name} has shape {tuple(tensor.shape)}, must hold one element")


def check_tensors(required: dict[str, torch.Tensor], optional: dict[str, torch.Tensor | None]) -> None:
    """Check that all arguments are tensors on the device of the first one, the queries; optional ones may be None."""
    given = required | {name: tensor for name, tensor in optional.items() if tensor is not None}
    first = next(iter(given))
    for name, tensor in given.items():
        require_tensor(name, tensor)
        require_device(name, tensor, given[first].device, first)


def check_heads(*, num_query_heads: int, num_kv_heads: int) -> None:
    """Check that each KV head serves the same number of query heads, from 1 to 64."""
    require_range("num_kv_heads", num_kv_heads, 1)
    require_range("num_query_heads", num_query_heads, 1)
    if num_query_heads % num_kv_heads:
        raise ContractError(f"{num_query_heads=} must be a multiple of {num_kv_heads=}")
    require_range("num_queries_per_kv", num_query_heads // num_kv_heads, 1, MAX_QUERIES_PER_KV)


def check_head_vector(name: str, tensor: torch.Tensor | None, num_query_heads: int) -> None:
    """Check that slopes or sinks are one float for each query head."""
    if tensor is not None:
        require_dtype(name, tensor, BIAS_DTYPES)
        require_shape(name, tensor, (num_query_heads,))
        require_unit_stride(name, tensor)


def check_tile_size(tile_size: int | None, q_dtype: torch.dtype) -> None:
    """Check that the tile size, if given, is a power of two that dot products of q's dtype support."""
    if tile_size is not None:
        require_range("tile_size", tile_size, smallest_dot_size(q_dtype), MAX_TILE_SIZE)
        if tile_size & (tile_size - 1):
            raise ContractError(f"{tile_size=} must be a power of two")


def check_queries(
    names: tuple[str, str], q: torch.Tensor, out: torch.Tensor, q_dtypes: Collection[torch.dtype]
) -> None:
    """Check queries `[num_tokens, num_query_heads, head_size]` and an output of that shape or with more rows.

    `names` are the two argument names in messages.
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
    """Check int32 metadata of shapes `[num_seqs + 1]`, `[num_seqs]` and `[num_seqs or more, max_blocks]`.

    `names` are the three argument names in messages. `query_start_loc` may be None where it is not needed.
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
    """Check that the scale is one float32 element for an fp8 output, and None for any other.

    `names` are the two argument names in messages.
    """
    scale_name, out_name = names
    if output_scale is not None:
        require_one_element(scale_name, output_scale)
    if (output_scale is not None) != (out.dtype in FP8_DTYPES):
        wanted = "None" if output_scale is not None else "given"
        raise ContractError(f"{scale_name} must be {wanted} for {out_name} of dtype {dtype_name(out.dtype)}")
