"""A block of query rows and its loop over the tiles of keys, shared by the kernels of all families.

Launchers and jit functions pass NamedTuples: a body reads `keys.stride_slot`, and Triton flattens them before it
compiles.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from typing import NamedTuple

import triton
import triton.language as tl

from .paged_cache import dequantize, locate_keys, slot_offsets
from .scores import alibi_bias, apply_softcap, load_qq_bias, visibility_mask
from .softmax import Softmax, online_softmax_update, start_with_sinks


class Factors(NamedTuple):
    """The factors on dot products, and on stored keys and values that are dequantised."""

    score: tl.tensor  # scalar
    key: tl.tensor  # scalar
    value: tl.tensor  # scalar


@triton.jit
def start_softmax(
    sinks_ptr,  # [num_query_heads] or None
    rows,  # Rows
    segment,
    BLOCK_M: tl.constexpr,
    HEAD_SIZE_PADDED: tl.constexpr,
    USE_SINKS: tl.constexpr,
):
    """Return the Softmax of rows that have seen no key yet, only their sink if they have one."""
    # [BLOCK_M]
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    if USE_SINKS:  # noqa: SIM102 - one condition is the compiler's, the other the program's
        # The sink joins the denominator once, so only the first segment counts it: that one always has tiles.
        if segment == 0:
            row_max, row_sum = start_with_sinks(sinks_ptr, rows.head, rows.mask)
    return Softmax(row_max, row_sum, tl.zeros([BLOCK_M, HEAD_SIZE_PADDED], tl.float32))


@triton.jit
def attend_tiles(
    softmax,  # Softmax over the keys before these tiles
    q_tile,  # [BLOCK_M, HEAD_SIZE_PADDED]
    keys,  # Cache
    values,  # Cache
    pages,  # Pages
    factors,  # Factors
    scores,  # Scores
    qq_bias,  # QQBias or None
    visible,  # Visibility
    rows,  # Rows
    dims,  # Dims
    first_tile,
    end_tile,
    tiling: tl.constexpr,  # Tiling
    variant: tl.constexpr,  # Variant
    PV_DTYPE: tl.constexpr,
    DEQUANTIZE: tl.constexpr,
):
    """Return the Softmax after tiles [first_tile, end_tile), which begin at key `pages.first_key`.

    For keys that no row sees, neither page nor key nor value is loaded. They may hold NaN, and 0 * NaN is NaN. Keys
    are multiplied in the dtype of `q_tile`, values in PV_DTYPE.
    """
    row_max, row_sum, output = softmax
    if variant.USE_ALIBI:
        # [BLOCK_M]
        slope = tl.load(scores.alibi_slopes_ptr + rows.head, mask=rows.mask, other=0.0).to(tl.float32)

    for tile in range(first_tile, end_tile):
        # [TILE_SIZE]
        key = pages.first_key + tile * tiling.TILE_SIZE + tl.arange(0, tiling.TILE_SIZE)
        key_mask = (key >= visible.key_begin) & (key < visible.key_end)
        page, slot = locate_keys(pages, key, key_mask, variant.BLOCK_SIZE)

        # [HEAD_SIZE_PADDED, TILE_SIZE]
        key_offset = slot_offsets(keys, page, slot, pages.kv_head)
        k_tile = tl.load(
            keys.ptr + key_offset[None, :] + keys.dim_offset[:, None],
            mask=dims.mask[:, None] & key_mask[None, :],
            other=0.0,
        )
        k_tile = dequantize(k_tile, factors.key, q_tile.dtype, DEQUANTIZE)

        # [BLOCK_M, TILE_SIZE]
        score = factors.score * tl.dot(q_tile, k_tile, input_precision="ieee")
        if variant.USE_SOFTCAP:
            score = apply_softcap(score, scores.softcap)
        # Surplus rows see nothing: their query lies in the next block, and their bias outside of the matrix.
        mask = visibility_mask(visible.context_len + rows.query, key, visible, variant.USE_WINDOW) & rows.mask[:, None]
        if variant.USE_ALIBI:
            score += alibi_bias(slope, key, visible.context_len)
        if variant.USE_QQ_BIAS:
            score += load_qq_bias(qq_bias, rows.query, key - visible.context_len, mask)
        # After the soft cap, which would make a finite score of -inf.
        score = tl.where(mask, score, float("-inf"))

        row_max, row_sum, weights, alpha = online_softmax_update(score, row_max, row_sum)

        # [TILE_SIZE, HEAD_SIZE_PADDED]
        value_offset = slot_offsets(values, page, slot, pages.kv_head)
        v_tile = tl.load(
            values.ptr + value_offset[:, None] + values.dim_offset[None, :],
            mask=key_mask[:, None] & dims.mask[None, :],
            other=0.0,
        )
        v_tile = dequantize(v_tile, factors.value, PV_DTYPE, DEQUANTIZE)
        # What was summed relative to the old maximum is rescaled to the new one. Where there is no key yet, alpha is
        # exp(-inf - 0) = 0 and the sum is 0.
        output = output * alpha[:, None] + tl.dot(weights.to(PV_DTYPE), v_tile, input_precision="ieee")

    return Softmax(row_max, row_sum, output)
