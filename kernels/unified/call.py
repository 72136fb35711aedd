"""One call of `unified_attention`: its arguments by name, their contract, the launch plan, and what the kernels take.

A plan affects speed only. Every plan within the documented ranges gives the same result up to rounding.
"""

import functools
from dataclasses import dataclass

import torch

from ..common.arguments import Arguments, Tiling, Variant, kernel_window
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
from ..common.launch import (
    block_m_for,
    ceil_div,
    compiler_options,
    head_size_padded_for,
    next_power_of_two,
    tile_size_for,
)
from ..common.paged_cache import PagedCache, Scales
from ..common.rows import Batch, Tokens
from ..common.scores import Scores

_REQUIRED = ("q", "k", "v", "out", "cu_seqlens_q", "seqused_k", "block_table")
_OPTIONAL = ("q_descale", "k_descale", "v_descale", "alibi_slopes", "qq_bias", "sinks", "output_scale")
MAX_SEGMENTS = 4096
MAX_AUTOMATIC_SEGMENTS = 64
# On a CPU the heuristics assume the processors of an H200.
NOMINAL_PROCESSORS = 132


@dataclass(frozen=True)
class UnifiedCall:
    """The arguments of `unified_attention`, which documents each of them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    cu_seqlens_q: torch.Tensor
    max_seqlen_q: int
    seqused_k: torch.Tensor
    max_seqlen_k: int
    softmax_scale: float
    causal: bool
    window_size: tuple[int, int]
    block_table: torch.Tensor
    softcap: float
    q_descale: torch.Tensor | None = None
    k_descale: torch.Tensor | None = None
    v_descale: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    qq_bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    output_scale: torch.Tensor | None = None
    num_segments: int | None = None
    tile_size: int | None = None

    @property
    def num_tokens(self) -> int:
        """The rows of q, padding included."""
        return self.q.shape[0]

    @property
    def num_seqs(self) -> int:
        """How many sequences the batch has."""
        return self.seqused_k.shape[0]

    @property
    def num_query_heads(self) -> int:
        """How many heads q has."""
        return self.q.shape[1]

    @property
    def num_kv_heads(self) -> int:
        """How many heads the caches have."""
        return self.k.shape[2]

    @property
    def head_size(self) -> int:
        """The length of one query, key or value."""
        return self.q.shape[2]

    @property
    def window(self) -> int:
        """The sliding window W, 0 for none; the caller passes W - 1."""
        return self.window_size[0] + 1

    @property
    def has_work(self) -> bool:
        """Whether there is a token that may need an answer."""
        return self.num_tokens > 0 and self.num_seqs > 0


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


@dataclass(frozen=True)
class LaunchPlan:
    """The constexprs and grid of one launch; `num_segments` 0 means the 2D kernel."""

    block_m: int
    block_q: int
    head_size_padded: int
    tile_size: int
    num_segments: int
    num_q_blocks: int


def q_blocks_for(num_tokens: int, num_seqs: int, block_q: int) -> int:
    """Return an upper bound of the q-blocks of all sequences, whatever their lengths."""
    return num_tokens // block_q + num_seqs


def num_segments_for(
    *, num_seqs: int, num_kv_heads: int, max_seqlen_q: int, max_seqlen_k: int, tile_size: int, num_processors: int
) -> int:
    """Return the number of segments, a power of two, or 0 for the 2D kernel.

    Only a pure decode is divided into segments, and only when one program for each sequence and KV head would leave
    processors idle and there is more than one tile.
    """
    num_programs = num_seqs * num_kv_heads
    num_tiles = ceil_div(max_seqlen_k, tile_size)
    if max_seqlen_q != 1 or num_programs >= num_processors or num_tiles < 2:
        return 0
    wanted = next_power_of_two(ceil_div(2 * num_processors, num_programs))
    return min(wanted, next_power_of_two(num_tiles), MAX_AUTOMATIC_SEGMENTS)


def segments_padded_for(num_segments: int) -> int:
    """Return the number of segments rounded up to a power of two, the size of the merge's block."""
    return next_power_of_two(num_segments)


@functools.lru_cache
def processors_of(device: torch.device) -> int:
    """Return the number of multiprocessors of a device, NOMINAL_PROCESSORS for a CPU."""
    if device.type != "cuda":
        return NOMINAL_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def plan_launch(
    *,
    num_tokens: int,
    num_seqs: int,
    num_query_heads: int,
    num_kv_heads: int,
    head_size: int,
    q_dtype: torch.dtype,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_processors: int = NOMINAL_PROCESSORS,
    num_segments: int | None = None,
    tile_size: int | None = None,
) -> LaunchPlan:
    """Return the plan of a unified launch; `num_segments` and `tile_size` override the heuristics unless None."""
    num_queries_per_kv = num_query_heads // num_kv_heads
    block_m = block_m_for(num_queries_per_kv, max_seqlen_q)
    block_q = block_m // num_queries_per_kv
    if tile_size is None:
        tile_size = tile_size_for(head_size, q_dtype, is_decode=max_seqlen_q <= 1)
    if num_segments is None:
        num_segments = num_segments_for(
            num_seqs=num_seqs,
            num_kv_heads=num_kv_heads,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            tile_size=tile_size,
            num_processors=num_processors,
        )
    return LaunchPlan(
        block_m=block_m,
        block_q=block_q,
        head_size_padded=head_size_padded_for(head_size, q_dtype),
        tile_size=tile_size,
        num_segments=num_segments,
        num_q_blocks=q_blocks_for(num_tokens, num_seqs, block_q),
    )


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
