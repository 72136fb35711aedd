"""The contract of `unified_attention`: what is checked before a kernel is launched."""

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
from .call import UnifiedCall
from .launch import MAX_SEGMENTS

_REQUIRED = ("q", "k", "v", "out", "cu_seqlens_q", "seqused_k", "block_table")
_OPTIONAL = ("q_descale", "k_descale", "v_descale", "alibi_slopes", "qq_bias", "sinks", "output_scale")


def check_unified(call: UnifiedCall) -> None:
    """Raise ContractError for the first argument of `unified_attention` that is outside of its contract."""
    check_tensors({name: getattr(call, name) for name in _REQUIRED}, {name: getattr(call, name) for name in _OPTIONAL})
    check_queries(("q", "out"), call.q, call.out, FLOAT_DTYPES + FP8_DTYPES)
    check_caches(call)
    check_batch(("cu_seqlens_q", "seqused_k", "block_table"), call.cu_seqlens_q, call.seqused_k, call.block_table)
    require_range("max_seqlen_q", call.max_seqlen_q, 0)
    require_range("max_seqlen_k", call.max_seqlen_k, 0)
    check_masking(call)
    check_head_vector("alibi_slopes", call.alibi_slopes, call.num_query_heads)
    check_head_vector("sinks", call.sinks, call.num_query_heads)
    check_qq_bias(call)
    check_scales(call)
    check_hints(call)


def check_caches(call: UnifiedCall) -> None:
    """Check that the caches are `[num_blocks, block_size, num_kv_heads, head_size]` and match q and each other."""
    q, k, v = call.q, call.k, call.v
    if q.dtype in FP8_DTYPES:
        require_dtype("k", k, FP8_DTYPES)
    else:
        require_dtype("k", k, (q.dtype, *FP8_DTYPES))
    require_dtype("v", v, (k.dtype,))
    require_shape("k", k, (None, None, None, call.head_size))
    require_shape("v", v, tuple(k.shape))
    require_range("block_size", k.shape[1], 1)
    require_unit_stride("k", k)
    require_unit_stride("v", v)
    check_heads(num_query_heads=call.num_query_heads, num_kv_heads=call.num_kv_heads)


def check_masking(call: UnifiedCall) -> None:
    """Check the causal flag, the window, and the factors on scores."""
    causal, window_size, softcap = call.causal, call.window_size, call.softcap
    if causal is not True:
        raise ContractError(f"{causal=} must be True: only causal attention is implemented")
    if len(window_size) != 2:
        raise ContractError(f"{window_size=} must be a pair (left, right)")
    left, right = window_size
    if left < -1:
        raise ContractError(f"{window_size=} must have left >= -1")
    if right not in (-1, 0):
        raise ContractError(f"{window_size=} must have right 0 or -1: causal attention sees no later key")
    require_finite("softmax_scale", call.softmax_scale)
    require_finite("softcap", softcap)
    if softcap < 0:
        raise ContractError(f"{softcap=} must be at least 0")


def check_qq_bias(call: UnifiedCall) -> None:
    """Check that the query-query bias has a row for each token of the longest query; columns and strides are free."""
    qq_bias, max_seqlen_q = call.qq_bias, call.max_seqlen_q
    if qq_bias is None:
        return
    require_dtype("qq_bias", qq_bias, BIAS_DTYPES)
    require_shape("qq_bias", qq_bias, (None, None))
    if max_seqlen_q > qq_bias.shape[0]:
        raise ContractError(f"{max_seqlen_q=} must not exceed qq_bias.shape[0]={qq_bias.shape[0]}")


def check_scales(call: UnifiedCall) -> None:
    """Check that each scale is one float32 element, and that none is missing or would be ignored."""
    for name in ("q_descale", "k_descale", "v_descale"):
        if getattr(call, name) is not None:
            require_one_element(name, getattr(call, name))
    if call.q_descale is not None and call.q.dtype not in FP8_DTYPES:
        raise ContractError(f"q_descale must be None for q of dtype {dtype_name(call.q.dtype)}: it belongs to an fp8 q")
    check_output_scale(("output_scale", "out"), call.output_scale, call.out)


def check_hints(call: UnifiedCall) -> None:
    """Check the launch hints."""
    if call.num_segments is not None:
        require_range("num_segments", call.num_segments, 0, MAX_SEGMENTS)
    check_tile_size(call.tile_size, call.q.dtype)
