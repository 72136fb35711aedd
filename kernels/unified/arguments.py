"""Kernel arguments of a unified launch, by kernel parameter name."""

import torch

from ..common.arguments import Arguments, kernel_window
from ..common.contract import FP8_DTYPES
from ..common.launch import compiler_options
from ..common.paged_cache import PagedCache, Scales
from ..common.rows import Tokens
from ..common.scores import Scores
from ..common.sequences import Batch
from ..common.variant import Tiling, Variant
from .call import UnifiedCall
from .launch import LaunchPlan


def attention_arguments(call: UnifiedCall, plan: LaunchPlan) -> Arguments:
    """Return the arguments that only the 2D and 3D kernels take, compiler options included."""
    return (
        query_and_cache_arguments(call)
        | score_arguments(call)
        | {"batch": batch_of(call, call.block_table), "variant": variant_of(call, plan)}
        | compiler_options(plan.block_m, plan.head_size_padded, plan.tile_size, call.q.dtype)
    )


def shared_arguments(call: UnifiedCall, plan: LaunchPlan) -> Arguments:
    """Return what all three kernels take: the window, and the tiling that 3D and reduce must share."""
    return {
        "window": kernel_window(call.window),
        "num_seqs": call.num_seqs,
        "tiling": Tiling(
            BLOCK_Q=plan.block_q,
            TILE_SIZE=plan.tile_size,
            HEAD_SIZE=call.head_size,
            HEAD_SIZE_PADDED=plan.head_size_padded,
        ),
    }


def batch_of(call: UnifiedCall, block_table: torch.Tensor | None) -> Batch:
    """Return the sequences, with the block table for a kernel that reads the cache."""
    return Batch(query_start_loc_ptr=call.cu_seqlens_q, seq_lens_ptr=call.seqused_k, block_table_ptr=block_table)


def query_and_cache_arguments(call: UnifiedCall) -> Arguments:
    """Return the arguments about q and the paged cache."""
    q = call.q
    k, v = call.k, call.v
    return {
        "queries": Tokens(ptr=q, stride_token=q.stride(0), stride_head=q.stride(1)),
        "keys": PagedCache(ptr=k, stride_block=k.stride(0), stride_slot=k.stride(1), stride_head=k.stride(2)),
        "values": PagedCache(ptr=v, stride_block=v.stride(0), stride_slot=v.stride(1), stride_head=v.stride(2)),
        "block_table_stride": call.block_table.stride(0),
    }


def score_arguments(call: UnifiedCall) -> Arguments:
    """Return the arguments about everything between the dot product and the softmax."""
    qq_bias = call.qq_bias
    return {
        "scores": Scores(
            softcap=float(call.softcap),
            alibi_slopes_ptr=call.alibi_slopes,
            qq_bias_ptr=qq_bias,
            sinks_ptr=call.sinks,
        ),
        "scales": Scales(
            softmax_scale=float(call.softmax_scale),
            q_scale_ptr=call.q_descale,
            k_scale_ptr=call.k_descale,
            v_scale_ptr=call.v_descale,
        ),
        "qq_bias_stride_row": 0 if qq_bias is None else qq_bias.stride(0),
        "qq_bias_stride_col": 0 if qq_bias is None else qq_bias.stride(1),
        "qq_bias_cols": 0 if qq_bias is None else qq_bias.shape[1],
    }


def variant_of(call: UnifiedCall, plan: LaunchPlan) -> Variant:
    """Return what the 2D and 3D kernels are compiled for beside the tiling."""
    return Variant(
        BLOCK_M=plan.block_m,
        NUM_QUERIES_PER_KV=call.num_query_heads // call.num_kv_heads,
        BLOCK_SIZE=call.k.shape[1],
        USE_WINDOW=call.window > 0,
        USE_SOFTCAP=call.softcap > 0,
        USE_ALIBI=call.alibi_slopes is not None,
        USE_QQ_BIAS=call.qq_bias is not None,
        USE_SINKS=call.sinks is not None,
        USE_FP8_Q=call.q.dtype in FP8_DTYPES,
        USE_FP8_KV=call.k.dtype in FP8_DTYPES,
    )
