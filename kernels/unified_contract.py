"""Everything that `unified_attention` refuses, checked before a kernel is launched."""

import torch

from fuzz_attn.kernels.contract import (
    BIAS_DTYPES,
    FLOAT_DTYPES,
    FP8_DTYPES,
    ContractError,
    dtype_name,
    require_device,
    require_dtype,
    require_finite,
    require_one_element,
    require_range,
    require_shape,
    require_tensor,
    require_unit_stride,
)
from fuzz_attn.kernels.unified_launch import MAX_SEGMENTS, MAX_TILE_SIZE, smallest_dot_size

MAX_HEAD_SIZE = 256
MAX_QUERIES_PER_KV = 64


def check_tensors(required: dict[str, torch.Tensor], optional: dict[str, torch.Tensor | None]) -> None:
    """Refuse what is no tensor, or lives on another device than q. `required` begins with q."""
    given = required | {name: tensor for name, tensor in optional.items() if tensor is not None}
    device = None
    for name, tensor in given.items():
        require_tensor(name, tensor)
        device = device or tensor.device
        require_device(name, tensor, device)


def check_queries(q: torch.Tensor, out: torch.Tensor) -> None:
    """Refuse q `[num_tokens, num_query_heads, head_size]`, and out unless it has that shape or more rows."""
    require_dtype("q", q, FLOAT_DTYPES + FP8_DTYPES)
    require_dtype("out", out, FLOAT_DTYPES + FP8_DTYPES)
    require_shape("q", q, (None, None, None))
    require_shape("out", out, (None, *q.shape[1:]))
    require_range("out.shape[0]", out.shape[0], q.shape[0])
    require_range("head_size", q.shape[2], 1, MAX_HEAD_SIZE)
    require_unit_stride("q", q)
    require_unit_stride("out", out)


def check_caches(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Refuse caches `[num_blocks, block_size, num_kv_heads, head_size]` that do not fit q or each other."""
    if q.dtype in FP8_DTYPES:
        require_dtype("k", k, FP8_DTYPES)
    else:
        require_dtype("k", k, (q.dtype, *FP8_DTYPES))
    require_dtype("v", v, (k.dtype,))
    require_shape("k", k, (None, None, None, q.shape[2]))
    require_shape("v", v, tuple(k.shape))
    require_range("block_size", k.shape[1], 1)
    require_unit_stride("k", k)
    require_unit_stride("v", v)
    check_heads(num_query_heads=q.shape[1], num_kv_heads=k.shape[2])


def check_heads(*, num_query_heads: int, num_kv_heads: int) -> None:
    """Refuse head counts of which some query heads would have no KV head, or more than 64 the same."""
    require_range("num_kv_heads", num_kv_heads, 1)
    require_range("num_query_heads", num_query_heads, 1)
    if num_query_heads % num_kv_heads:
        raise ContractError(f"{num_query_heads=} must be a multiple of {num_kv_heads=}")
    require_range("num_queries_per_kv", num_query_heads // num_kv_heads, 1, MAX_QUERIES_PER_KV)


def check_batch(cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, block_table: torch.Tensor) -> None:
    """Refuse int32 metadata `[num_seqs + 1]`, `[num_seqs]`, `[num_seqs or more, max_blocks]` that does not fit."""
    for name, tensor in (("cu_seqlens_q", cu_seqlens_q), ("seqused_k", seqused_k), ("block_table", block_table)):
        require_dtype(name, tensor, (torch.int32,))
    require_shape("seqused_k", seqused_k, (None,))
    require_shape("cu_seqlens_q", cu_seqlens_q, (seqused_k.shape[0] + 1,))
    require_shape("block_table", block_table, (None, None))
    require_range("block_table.shape[0]", block_table.shape[0], seqused_k.shape[0])
    require_unit_stride("seqused_k", seqused_k)
    require_unit_stride("cu_seqlens_q", cu_seqlens_q)
    require_unit_stride("block_table", block_table)


def check_masking(causal: bool, window_size: tuple[int, int], softmax_scale: float, softcap: float) -> None:
    """Refuse host numbers outside of their ranges."""
    if causal is not True:
        raise ContractError(f"{causal=} must be True: only causal attention is implemented")
    if len(window_size) != 2:
        raise ContractError(f"{window_size=} must be a pair (left, right)")
    left, right = window_size
    if left < -1:
        raise ContractError(f"{window_size=} must have left >= -1")
    if right not in (-1, 0):
        raise ContractError(f"{window_size=} must have right 0 or -1: causal attention sees no later key")
    require_finite("softmax_scale", softmax_scale)
    require_finite("softcap", softcap)
    if softcap < 0:
        raise ContractError(f"{softcap=} must be at least 0")


def check_head_vector(name: str, tensor: torch.Tensor | None, num_query_heads: int) -> None:
    """Refuse slopes or sinks that are not one float for each query head."""
    if tensor is not None:
        require_dtype(name, tensor, BIAS_DTYPES)
        require_shape(name, tensor, (num_query_heads,))
        require_unit_stride(name, tensor)


def check_qq_bias(qq_bias: torch.Tensor | None, max_seqlen_q: int) -> None:
    """Refuse a query-query bias with fewer rows than the longest query; its columns and strides are free."""
    if qq_bias is None:
        return
    require_dtype("qq_bias", qq_bias, BIAS_DTYPES)
    require_shape("qq_bias", qq_bias, (None, None))
    if max_seqlen_q > qq_bias.shape[0]:
        raise ContractError(f"{max_seqlen_q=} must not exceed qq_bias.shape[0]={qq_bias.shape[0]}")


def check_scales(
    q: torch.Tensor,
    out: torch.Tensor,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    output_scale: torch.Tensor | None,
) -> None:
    """Refuse scales that are not one float32, and scales that would be ignored or are missing."""
    scales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale, "output_scale": output_scale}
    for name, scale in scales.items():
        if scale is not None:
            require_one_element(name, scale)
    if q_descale is not None and q.dtype not in FP8_DTYPES:
        raise ContractError(f"q_descale must be None for q of dtype {dtype_name(q.dtype)}: it belongs to an fp8 q")
    if (output_scale is not None) != (out.dtype in FP8_DTYPES):
        wanted = "None" if output_scale is not None else "given"
        raise ContractError(f"output_scale must be {wanted} for out of dtype {dtype_name(out.dtype)}")


def check_hints(q: torch.Tensor, num_segments: int | None, tile_size: int | None) -> None:
    """Refuse launch hints outside of their ranges."""
    if num_segments is not None:
        require_range("num_segments", num_segments, 0, MAX_SEGMENTS)
    if tile_size is not None:
        require_range("tile_size", tile_size, smallest_dot_size(q.dtype), MAX_TILE_SIZE)
        if tile_size & (tile_size - 1):
            raise ContractError(f"{tile_size=} must be a power of two")


def check_unified(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    seqused_k: torch.Tensor,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    block_table: torch.Tensor,
    softcap: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    qq_bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
    output_scale: torch.Tensor | None,
    num_segments: int | None,
    tile_size: int | None,
) -> None:
    """Raise ContractError for the first argument of `unified_attention` that it does not promise to handle."""
    check_tensors(
        {
            "q": q,
            "k": k,
            "v": v,
            "out": out,
            "cu_seqlens_q": cu_seqlens_q,
            "seqused_k": seqused_k,
            "block_table": block_table,
        },
        {
            "q_descale": q_descale,
            "k_descale": k_descale,
            "v_descale": v_descale,
            "alibi_slopes": alibi_slopes,
            "qq_bias": qq_bias,
            "sinks": sinks,
            "output_scale": output_scale,
        },
    )
    check_queries(q, out)
    check_caches(q, k, v)
    check_batch(cu_seqlens_q, seqused_k, block_table)
    require_range("max_seqlen_q", max_seqlen_q, 0)
    require_range("max_seqlen_k", max_seqlen_k, 0)
    check_masking(causal, window_size, softmax_scale, softcap)
    check_head_vector("alibi_slopes", alibi_slopes, q.shape[1])
    check_head_vector("sinks", sinks, q.shape[1])
    check_qq_bias(qq_bias, max_seqlen_q)
    check_scales(q, out, q_descale, k_descale, v_descale, output_scale)
    check_hints(q, num_segments, tile_size)
