"""Visible keys: the keys of a case whose loss would move some output beyond its error bound.

Imported by ``bench_visibility.py``, and by tests through the fixture ``visible_keys``. It measures the strategies; no
campaign needs it.
"""

from __future__ import annotations

from typing import Final

import torch
from msgspec import Struct

from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.error_bound import MAX_DEVIATIONS
from fuzz_attn.oracle.reference import PLAIN_MODEL, BlockReference, attend_block, output_factor
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.row_blocks import RowBlock, row_blocks

TILE: Final = 16
"""Keys of the smallest tile; every edge of a larger tile is an edge of one of these."""


class Visibility(Struct, frozen=True):
    """Counts of the (row, key) pairs of a case that the row sees, and of those whose loss the oracle would notice.

    The ``boundary`` counts are for keys on an edge: the first and last that the row sees, the first and last slot of a
    page and of a tile, and the last key of the sequence.
    """

    pairs: int = 0
    visible: int = 0
    boundary_pairs: int = 0
    boundary_visible: int = 0

    def __add__(self, other: Visibility) -> Visibility:
        """Return the counts of both cases together."""
        return Visibility(
            self.pairs + other.pairs,
            self.visible + other.visible,
            self.boundary_pairs + other.boundary_pairs,
            self.boundary_visible + other.boundary_visible,
        )


def visible_share(tensors: AttentionTensors, model: RoundingModel = PLAIN_MODEL) -> Visibility:
    """Return the counts of a case. A pair is visible if, without the key, some column moves by more than its bound."""
    total = Visibility()
    seen: set[int] = set()
    for block in row_blocks(tensors):
        reference = attend_block(block, tensors, model)
        change = leave_one_out(block, reference, tensors)
        counted = block.visible & _first_of_each(block.tokens, seen)[..., None]
        total += _counts(change & reference.judged, counted, boundary_keys(block, tensors))
    return total


def leave_one_out(block: RowBlock, reference: BlockReference, tensors: AttentionTensors) -> torch.Tensor:
    """Return bool ``[B, num_kv_heads, Q, group, K]``: whether dropping the key moves some column beyond its bound.

    Without key j the average becomes ``o - p_j (v_j - o) / (1 - p_j)``. A row that loses its only key has no output,
    which always counts as visible. fp8 outputs are compared after clamping.
    """
    weights, output = reference.weights.exact.flatten(2, 3), reference.output.flatten(2, 3)
    bound, expected = reference.bound.flatten(2, 3), reference.expected.flatten(2, 3)
    odds = weights / (1 - weights).clamp_min_(2.0**-53)
    result = torch.zeros_like(odds, dtype=torch.bool)
    step = max(1, 4 * MAX_DEVIATIONS // max(1, block.values.numel()))
    limit = torch.finfo(tensors.output.dtype).max
    for first in range(0, output.shape[2], step):
        row = slice(first, first + step)
        before = output[:, :, row, None]
        after = before - odds[:, :, row, :, None] * (block.values[:, :, None] - before)
        stored = (after * output_factor(tensors)).clamp_(-limit, limit)
        change = (stored - expected[:, :, row, None]).abs_()
        result[:, :, row] = (change > bound[:, :, row, None]).any(-1)
    only_key = weights >= 1 - 2.0**-52
    return (result | only_key).view_as(reference.weights.exact)


def boundary_keys(block: RowBlock, tensors: AttentionTensors) -> torch.Tensor:
    """Return bool ``[B, Q, K]``: whether the key lies on an edge as the row sees it."""
    keys, positions = block.key_position[:, None], block.position[..., None]
    last = torch.tensor(tensors.query_lens, device=keys.device) + torch.tensor(tensors.context_lens, device=keys.device)
    edge = (keys == positions) | torch.isin(keys, last - 1) & (keys == positions.amax(1, keepdim=True))
    if tensors.window:
        edge |= keys == (positions - tensors.window + 1).clamp_min(0)
    for size in (tensors.block_size, TILE):
        edge |= (keys % size == 0) | (keys % size == size - 1)
    return edge


def _counts(change: torch.Tensor, counted: torch.Tensor, boundary: torch.Tensor) -> Visibility:
    pairs = counted[:, None, :, None].expand_as(change)
    edge = pairs & boundary[:, None, :, None]
    return Visibility(*(int(mask.sum()) for mask in (pairs, pairs & change, edge, edge & change)))


def _first_of_each(tokens: torch.Tensor, seen: set[int]) -> torch.Tensor:
    """Return bool of the shape of ``tokens``: False where padding repeats a row that was counted before."""
    flags = []
    for token in tokens.flatten().tolist():
        flags.append(token not in seen)
        seen.add(token)
    return torch.tensor(flags, device=tokens.device).view_as(tokens)
