"""Kernel arguments of paged decode and context attention, by kernel parameter name."""

from ..common.arguments import TRITON_DTYPES, Arguments, kernel_window, output_arguments
from ..common.contract import FP8_DTYPES
from ..common.launch import compiler_options, dot_dtypes_for, head_size_padded_for, tile_size_for
from .call import SplitCall


def split_arguments(call: SplitCall, *, block_m: int, is_decode: bool) -> Arguments:
    """Return the arguments that both kernels take, compiler options included, for blocks of `block_m` rows."""
    qk_dtype, pv_dtype = dot_dtypes_for(call.query.dtype)
    head_size_padded = head_size_padded_for(call.head_size, call.query.dtype)
    tile_size = call.tile_size or tile_size_for(call.head_size, call.query.dtype, is_decode)
    return (
        output_arguments(call.output, call.output_scale)
        | split_cache_arguments(call)
        | {
            "q_ptr": call.query,
            "q_stride_token": call.query.stride(0),
            "q_stride_head": call.query.stride(1),
            "query_start_loc_ptr": call.query_start_loc,
            "seq_lens_ptr": call.seq_lens,
            "alibi_slopes_ptr": call.alibi_slopes,
            "sinks_ptr": call.sinks,
            "softmax_scale": call.softmax_scale,
            "window": kernel_window(call.window),
            "HEAD_SIZE": call.head_size,
            "HEAD_SIZE_PADDED": head_size_padded,
            "NUM_QUERIES_PER_KV": call.num_queries_per_kv,
            "BLOCK_M": block_m,
            "TILE_SIZE": tile_size,
            "QK_DTYPE": TRITON_DTYPES[qk_dtype],
            "PV_DTYPE": TRITON_DTYPES[pv_dtype],
            "USE_WINDOW": call.window > 0,
            "USE_ALIBI": call.alibi_slopes is not None,
            "USE_SINKS": call.sinks is not None,
        }
        | compiler_options(block_m, head_size_padded, tile_size, call.query.dtype)
    )


def split_cache_arguments(call: SplitCall) -> Arguments:
    """Return the arguments about the caches and the block table."""
    keys, values = call.stored_caches
    return {
        "key_cache_ptr": keys,
        "key_stride_block": keys.stride(0),
        "key_stride_head": keys.stride(1),
        "key_stride_chunk": keys.stride(2),
        "key_stride_slot": keys.stride(3),
        "value_cache_ptr": values,
        "value_stride_block": values.stride(0),
        "value_stride_head": values.stride(1),
        "value_stride_dim": values.stride(2),
        "k_scale_ptr": call.k_scale,
        "v_scale_ptr": call.v_scale,
        "block_table_ptr": call.block_table,
        "block_table_stride": call.block_table.stride(0),
        "BLOCK_SIZE": keys.shape[3],
        "X": keys.shape[4],
        "USE_FP8_KV": keys.dtype in FP8_DTYPES,
    }
