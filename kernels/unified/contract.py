"""Everything that `unified_attention` refuses, checked before a kernel is launched."""

import torch

from ..common.contract import (
    BIAS_DTYPES,
    FLOAT_DTYPES,
    FP8_DTYPES,
    ContractError,
    check_batch,
    check_head_vector,
    check_heads,
    check_output_scale,
    check_queries,
    check_tensors,
    check_tile_size,
    dtype_name,
    require_dtype,
    require_finite,
    require_one_element,
    require_range,
    require_shape,
    require_unit_stride,
)
from .launch import MAX_SEGMENTS


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
    for name, scale in {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}.items():
        if scale is not None:
            require_one_element(name, scale)
    if q_descale is not None and q.dtype not in FP8_DTYPES:
        raise ContractError(f"q_descale must be None for q of dtype {dtype_name(q.dtype)}: it belongs to an fp8 q")
    check_output_scale(("output_scale", "out"), output_scale, out)


def check_hints(q: torch.Tensor, num_segments: int | None, tile_size: int | None) -> None:
    """Refuse launch hints outside of their ranges."""
    if num_segments is not None:
        require_range("num_segments", num_segments, 0, MAX_SEGMENTS)
    check_tile_size(tile_size, q.dtype)


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
    check_queries(("q", "out"), q, out, FLOAT_DTYPES + FP8_DTYPES)
    check_caches(q, k, v)
    check_batch(("cu_seqlens_q", "seqused_k", "block_table"), cu_seqlens_q, seqused_k, block_table)
    require_range("max_seqlen_q", max_seqlen_q, 0)
    require_range("max_seqlen_k", max_seqlen_k, 0)
    check_masking(causal, window_size, softmax_scale, softcap)
    check_head_vector("alibi_slopes", alibi_slopes, q.shape[1])
    check_head_vector("sinks", sinks, q.shape[1])
    check_qq_bias(qq_bias, max_seqlen_q)
    check_scales(q, out, q_descale, k_descale, v_descale, output_scale)
    check_hints(q, num_segments, tile_size)
