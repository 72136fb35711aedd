"""Kernel arguments of paged decode and context attention, by kernel parameter name."""

from ..common.arguments import Arguments, kernel_window, output_arguments
from ..common.contract import FP8_DTYPES
from ..common.launch import compiler_options, head_size_padded_for, tile_size_for
from ..common.paged_cache import Scales, SplitKeys, SplitValues
from ..common.rows import Tokens
from ..common.scores import Scores
from ..common.sequences import Batch
from ..common.variant import Tiling, Variant
from .call import SplitCall


def split_arguments(call: SplitCall, *, block_m: int, block_q: int, is_decode: bool) -> Arguments:
    """Return what both kernels take, compiler options included, for blocks of `block_m` rows and `block_q` tokens."""
    head_size_padded = head_size_padded_for(call.head_size, call.query.dtype)
    tile_size = call.tile_size or tile_size_for(call.head_size, call.query.dtype, is_decode)
    return (
        output_arguments(call.output, call.output_scale)
        | split_cache_arguments(call)
        | {
            "queries": Tokens(
                ptr=call.query,
                stride_token=call.query.stride(0),
                stride_head=call.query.stride(1),
            ),
            "batch": Batch(
                query_start_loc_ptr=call.query_start_loc,
                seq_lens_ptr=call.seq_lens,
                block_table_ptr=call.block_table,
            ),
            "scores": Scores(softcap=None, alibi_slopes_ptr=call.alibi_slopes, qq_bias_ptr=None, sinks_ptr=call.sinks),
            "scales": Scales(
                softmax_scale=call.softmax_scale, q_scale_ptr=None, k_scale_ptr=call.k_scale, v_scale_ptr=call.v_scale
            ),
            "block_table_stride": call.block_table.stride(0),
            "window": kernel_window(call.window),
            "tiling": Tiling(
                BLOCK_Q=block_q, TILE_SIZE=tile_size, HEAD_SIZE=call.head_size, HEAD_SIZE_PADDED=head_size_padded
            ),
            "variant": variant_of(call, block_m),
        }
        | compiler_options(block_m, head_size_padded, tile_size, call.query.dtype)
    )


def split_cache_arguments(call: SplitCall) -> Arguments:
    """Return the arguments about the caches."""
    keys, values = call.stored_caches
    return {
        "keys": SplitKeys(
            ptr=keys,
            stride_block=keys.stride(0),
            stride_head=keys.stride(1),
            stride_chunk=keys.stride(2),
            stride_slot=keys.stride(3),
        ),
        "values": SplitValues(
            ptr=values,
            stride_block=values.stride(0),
            stride_head=values.stride(1),
            stride_dim=values.stride(2),
        ),
        "X": keys.shape[4],
    }


def variant_of(call: SplitCall, block_m: int) -> Variant:
    """Return what the kernels are compiled for beside the tiling."""
    keys, _ = call.stored_caches
    return Variant(
        BLOCK_M=block_m,
        NUM_QUERIES_PER_KV=call.num_queries_per_kv,
        BLOCK_SIZE=keys.shape[3],
        USE_WINDOW=call.window > 0,
        USE_SOFTCAP=False,
        USE_ALIBI=call.alibi_slopes is not None,
        USE_QQ_BIAS=False,
        USE_SINKS=call.sinks is not None,
        USE_FP8_Q=False,
        USE_FP8_KV=keys.dtype in FP8_DTYPES,
    )
