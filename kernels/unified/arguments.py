"""Kernel arguments of a unified launch, by kernel parameter name."""

from ..common.arguments import TRITON_DTYPES, Arguments, kernel_window
from ..common.contract import FP8_DTYPES
from ..common.launch import compiler_options, dot_dtypes_for
from .call import UnifiedCall
from .launch import LaunchPlan


def attention_arguments(call: UnifiedCall, plan: LaunchPlan) -> Arguments:
    """Return the arguments that only the 2D and 3D kernels take, compiler options included."""
    return (
        query_arguments(call)
        | cache_arguments(call)
        | score_arguments(call)
        | {"BLOCK_M": plan.block_m}
        | compiler_options(plan.block_m, plan.head_size_padded, plan.tile_size, call.q.dtype)
    )


def batch_arguments(call: UnifiedCall, plan: LaunchPlan) -> Arguments:
    """Return what all three kernels take: the sequences, the window, and the tiling that 3D and reduce must share."""
    return {
        "query_start_loc_ptr": call.cu_seqlens_q,
        "seq_lens_ptr": call.seqused_k,
        "window": kernel_window(call.window),
        "num_seqs": call.num_seqs,
        "HEAD_SIZE": call.head_size,
        "HEAD_SIZE_PADDED": plan.head_size_padded,
        "BLOCK_Q": plan.block_q,
        "TILE_SIZE": plan.tile_size,
        "USE_WINDOW": call.window > 0,
    }


def query_arguments(call: UnifiedCall) -> Arguments:
    """Return the arguments about q, and the operand dtypes of the dot products, which follow from its dtype."""
    q = call.q
    qk_dtype, pv_dtype = dot_dtypes_for(q.dtype)
    return {
        "q_ptr": q,
        "q_stride_token": q.stride(0),
        "q_stride_head": q.stride(1),
        "q_scale_ptr": call.q_descale,
        "QK_DTYPE": TRITON_DTYPES[qk_dtype],
        "PV_DTYPE": TRITON_DTYPES[pv_dtype],
        "USE_FP8_Q": q.dtype in FP8_DTYPES,
    }


def cache_arguments(call: UnifiedCall) -> Arguments:
    """Return the arguments about the paged cache."""
    k, v = call.k, call.v
    return {
        "key_cache_ptr": k,
        "key_stride_block": k.stride(0),
        "key_stride_slot": k.stride(1),
        "key_stride_head": k.stride(2),
        "k_scale_ptr": call.k_descale,
        "value_cache_ptr": v,
        "value_stride_block": v.stride(0),
        "value_stride_slot": v.stride(1),
        "value_stride_head": v.stride(2),
        "v_scale_ptr": call.v_descale,
        "block_table_ptr": call.block_table,
        "block_table_stride": call.block_table.stride(0),
        "BLOCK_SIZE": k.shape[1],
        "NUM_QUERIES_PER_KV": call.num_query_heads // call.num_kv_heads,
        "USE_FP8_KV": k.dtype in FP8_DTYPES,
    }


def score_arguments(call: UnifiedCall) -> Arguments:
    """Return the arguments about everything between the dot product and the softmax."""
    qq_bias = call.qq_bias
    return {
        "softmax_scale": float(call.softmax_scale),
        "softcap": float(call.softcap),
        "alibi_slopes_ptr": call.alibi_slopes,
        "qq_bias_ptr": qq_bias,
        "qq_bias_stride_row": 0 if qq_bias is None else qq_bias.stride(0),
        "qq_bias_stride_col": 0 if qq_bias is None else qq_bias.stride(1),
        "qq_bias_cols": 0 if qq_bias is None else qq_bias.shape[1],
        "sinks_ptr": call.sinks,
        "USE_SOFTCAP": call.softcap > 0,
        "USE_ALIBI": call.alibi_slopes is not None,
        "USE_QQ_BIAS": qq_bias is not None,
        "USE_SINKS": call.sinks is not None,
    }
