"""The launcher of decode over a latent cache (multi-head latent attention, MLA) in two stages."""

import torch

from .common.contract import (
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
from .common.launch import MIN_BLOCK_M, ceil_div, head_size_padded_for, next_power_of_two
from .common.rows import Tokens
from .common.splits import LatentCache, Splits, kernel_mla_merge, kernel_mla_split

LARGE_PART = 128
"""Above this size of a value, or of the rest of a key, a program takes few heads and keys: it needs many registers."""
TILE_BYTES = 2**17
"""The bytes of the keys of a tile, padded, that leave room for the queries in the shared memory of a GPU."""
WANTED_PROGRAMS = 256
MAX_AUTOMATIC_SPLITS = 16
MAX_HEAD_SIZE = 576
MAX_VALUE_SIZE = 512
MAX_QUERY_HEADS = 128
MAX_SPLITS = 64


def mla_decode(
    q: torch.Tensor,
    latent_cache: torch.Tensor,
    out: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    softmax_scale: float | None = None,
    lse: torch.Tensor | None = None,
    *,
    num_splits: int | None = None,
    tile_size: int | None = None,
) -> None:
    """Write the attention of each sequence's one query token over its cached keys into `out`, and its log-sum-exp.

    Shapes: num_tokens T, num_query_heads Hq (1 to 128), head_size D (1 to 576), head_size_v Dv (1 to 512, at most D),
    num_seqs B. There is one KV head. The last dimension of every tensor but `lse` has stride 1, all other strides are
    free.

    Args:
        q: `[T, Hq, D]` float32, float16 or bfloat16, `[latent | rope]`. Token i belongs to sequence i, and tokens from
            B on are padding.
        latent_cache: `[num_blocks, block_size, D]` of the query's dtype. A key is all D elements of a slot, its value
            the first Dv. Holds the new token.
        out: `[T or more, Hq, Dv]` float32, float16 or bfloat16; Dv is taken from it. Padding is not written.
        block_table: `[B or more, max_blocks]` int32; key j of sequence i is in page `block_table[i, j // block_size]`.
            Entries past a sequence's last page are not read.
        seq_lens: `[B]` int32, length of each whole sequence, its query token included. For a length of 0, `out` is 0
            and `lse` is -inf.
        softmax_scale: factor on the dot products; None is D ** -0.5.
        lse: `[T or more, Hq]` float32, any strides: the natural logarithm of each row's sum of exponentials. None
            leaves it out.
        num_splits: into how many parts the keys of a sequence are cut, at most 64; 0 is one. Some may have no keys.
            None lets a heuristic choose.
        tile_size: keys in a tile, a power of two from 16 to 128; of large keys fewer, if their tile would not fit into
            shared memory. None lets a heuristic choose.

    Raises:
        ContractError: an argument is outside of the above. Lengths and page numbers on the device are not read.

    """
    check_latent_call(q, latent_cache, out, block_table, seq_lens, softmax_scale, lse, num_splits, tile_size)
    num_seqs, num_query_heads, head_size, head_size_v = seq_lens.shape[0], q.shape[1], q.shape[2], out.shape[2]
    if not num_seqs:
        return
    padded = head_size_padded_for(head_size_v, q.dtype)
    rope_padded = head_size_padded_for(head_size - head_size_v, q.dtype)
    is_large = max(head_size_v, head_size - head_size_v) > LARGE_PART
    block_h = MIN_BLOCK_M if is_large else min(64, max(MIN_BLOCK_M, next_power_of_two(num_query_heads)))
    fitting = TILE_BYTES // ((padded + rope_padded) * q.element_size())
    tile = max(16, min(tile_size or (16 if is_large else 32), next_power_of_two(fitting + 1) // 2))
    head_blocks = ceil_div(num_query_heads, block_h)
    if num_splits is None:
        num_tiles = ceil_div(block_table.shape[1] * latent_cache.shape[1], tile)
        wanted = next_power_of_two(ceil_div(WANTED_PROGRAMS, num_seqs * head_blocks))
        num_splits = min(wanted, num_tiles, MAX_AUTOMATIC_SPLITS)
    num_splits = max(num_splits, 1)
    scratch = q.new_empty((num_seqs, num_query_heads, num_splits, head_size_v), dtype=torch.float32)
    splits = Splits(scratch, q.new_empty((num_seqs, num_query_heads, num_splits), dtype=torch.float32))
    kernel_mla_split[num_seqs, head_blocks, num_splits](
        splits,
        Tokens(q, q.stride(0), q.stride(1)),
        LatentCache(latent_cache, latent_cache.stride(0), latent_cache.stride(1)),
        block_table,
        seq_lens,
        head_size**-0.5 if softmax_scale is None else float(softmax_scale),
        num_query_heads,
        block_table.stride(0),
        HEAD_SIZE=head_size,
        HEAD_SIZE_V=head_size_v,
        HEAD_SIZE_V_PADDED=padded,
        ROPE_SIZE_PADDED=rope_padded,
        BLOCK_SIZE=latent_cache.shape[1],
        TILE_SIZE=tile,
        BLOCK_H=block_h,
        NUM_SPLITS=num_splits,
        num_warps=8 if is_large else 4,
        num_stages=1 if is_large else 2,
    )
    kernel_mla_merge[num_seqs, num_query_heads](
        Tokens(out, out.stride(0), out.stride(1)),
        lse,
        splits,
        seq_lens,
        num_query_heads,
        0 if lse is None else lse.stride(0),
        0 if lse is None else lse.stride(1),
        HEAD_SIZE_V=head_size_v,
        HEAD_SIZE_V_PADDED=padded,
        TILE_SIZE=tile,
        NUM_SPLITS=num_splits,
        NUM_SPLITS_PADDED=next_power_of_two(num_splits),
    )


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
