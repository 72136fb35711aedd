"""The contract of decode over a latent cache: what is checked before a kernel is launched."""

import torch

from ..common.contract import (
    FLOAT_DTYPES,
    ContractError,
    check_batch,
    check_tensors,
    check_tile_size,
    require_dtype,
    require_finite,
    require_range,
    require_shape,
    require_unit_stride,
)

MAX_HEAD_SIZE = 576
MAX_VALUE_SIZE = 512
MAX_QUERY_HEADS = 128
MAX_SPLITS = 64


def check_latent_call(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    out: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    softmax_scale: float | None,
    lse: torch.Tensor | None,
    num_splits: int | None,
    tile_size: int | None,
) -> None:
    """Raise ContractError for the first argument that is outside of the contract."""
    required = {"q": q, "latent_cache": latent_cache, "out": out, "block_table": block_table, "seq_lens": seq_lens}
    check_tensors(required, {"lse": lse})
    require_dtype("q", q, FLOAT_DTYPES)
    require_dtype("latent_cache", latent_cache, (q.dtype,))
    require_dtype("out", out, FLOAT_DTYPES)
    require_shape("q", q, (None, None, None))
    num_tokens, num_query_heads, head_size = q.shape
    require_range("num_query_heads", num_query_heads, 1, MAX_QUERY_HEADS)
    require_range("head_size", head_size, 1, MAX_HEAD_SIZE)
    require_shape("latent_cache", latent_cache, (None, None, head_size))
    require_range("block_size", latent_cache.shape[1], 1)
    require_shape("out", out, (None, num_query_heads, None))
    require_range("out.shape[0]", out.shape[0], num_tokens)
    require_range("head_size_v", out.shape[2], 1, MAX_VALUE_SIZE)
    if out.shape[2] > head_size:
        raise ContractError(f"head_size_v={out.shape[2]} must be at most head_size={head_size}")
    for name, tensor in (("q", q), ("latent_cache", latent_cache), ("out", out)):
        require_unit_stride(name, tensor)
    check_batch(("query_start_loc", "seq_lens", "block_table"), None, seq_lens, block_table)
    require_range("q.shape[0]", num_tokens, seq_lens.shape[0])
    if lse is not None:
        require_dtype("lse", lse, (torch.float32,))
        require_shape("lse", lse, (None, num_query_heads))
        require_range("lse.shape[0]", lse.shape[0], num_tokens)
    if softmax_scale is not None:
        require_finite("softmax_scale", softmax_scale)
    if num_splits is not None:
        require_range("num_splits", num_splits, 0, MAX_SPLITS)
    check_tile_size(tile_size, q.dtype)
