"""The launch plan of the unified family: pure functions of host numbers.

A plan affects speed only. Every plan within the documented ranges gives the same result up to rounding.
"""

import functools
from dataclasses import dataclass

import torch

from ..common.launch import block_m_for, ceil_div, head_size_padded_for, next_power_of_two, tile_size_for

MAX_SEGMENTS = 4096
MAX_AUTOMATIC_SEGMENTS = 64
# On a CPU the heuristics assume the processors of an H200.
NOMINAL_PROCESSORS = 132


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
