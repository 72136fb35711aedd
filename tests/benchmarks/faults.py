"""Faults: what a kernel with one mistake returns, computed exactly, so that only the mistake differs.

Imported by ``bench_lengths.py``, and by tests through the fixture ``faults``. Each fault changes the exact logits of
the visible keys: one key of a row counts twice, or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.mutation.batch_runner import stored
from fuzz_attn.oracle.reference import BlockReference, attend_block, output_factor
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.row_blocks import RowBlock, row_blocks

Chosen: TypeAlias = Callable[[RowBlock], torch.Tensor]
"""Returns bool ``[B, Q, K]``: the keys of each row that a fault changes."""

LOST: Final = -math.inf
DOUBLED: Final = math.log(2.0)
"""What a fault adds to the logit of a key."""


@dataclass(frozen=True)
class Parts:
    """The row blocks of a batch with their exact results."""

    tensors: AttentionTensors
    blocks: tuple[tuple[RowBlock, BlockReference], ...]


def parts_of(tensors: AttentionTensors, model: RoundingModel) -> Parts:
    """Return the row blocks of a batch with their exact results."""
    return Parts(tensors, tuple((block, attend_block(block, tensors, model)) for block in row_blocks(tensors)))


def output_with(parts: Parts, chosen: Chosen, change: float) -> torch.Tensor:
    """Return the stored output ``[num_tokens, num_query_heads, head_size]`` if the chosen keys' logits change."""
    tensors = parts.tensors
    output = torch.empty(sum(tensors.query_lens), tensors.num_kv_heads, *_rest(tensors), dtype=torch.float64)
    for block, exact in parts.blocks:
        output[block.tokens] = _average(block, exact, chosen(block), change).transpose(1, 2)
    return stored(output.flatten(1, 2) * output_factor(tensors), tensors.output.dtype)


def one_key(position: int) -> Chosen:
    """Return the choice of the key at a position, in every row that sees it."""

    def chosen(block: RowBlock) -> torch.Tensor:
        key: torch.Tensor = (block.key_position == position)[:, None]
        return block.visible & key

    return chosen


def oldest_key(window: int) -> Chosen:
    """Return the choice of the oldest key of each row that sees a whole window: a window shorter by one misses it."""
    return lambda block: block.visible & (block.position[:, :, None] - block.key_position[:, None] == window - 1)


def visible_positions(parts: Parts) -> torch.Tensor:
    """Return the positions of the keys that some row of the batch sees, ascending."""
    seen = [block.key_position[block.visible.any(1)] for block, _ in parts.blocks]
    positions: torch.Tensor = torch.unique(torch.cat(seen))  # of which torch's stubs know more than one result
    return positions


def _rest(tensors: AttentionTensors) -> Iterator[int]:
    _, num_heads, head_size = tensors.query.shape
    yield from (num_heads // tensors.num_kv_heads, head_size)


def _average(block: RowBlock, exact: BlockReference, chosen: torch.Tensor, change: float) -> torch.Tensor:
    """Return the weighted averages of V; 0 where no key is left, as the kernels return it."""
    logits = torch.where(chosen[:, None, :, None], exact.logits.exact + change, exact.logits.exact)
    top = torch.maximum(logits.amax(-1, keepdim=True), exact.logits.sink)
    weights = (logits - top).exp_()
    total = weights.sum(-1, keepdim=True) + (exact.logits.sink - top).exp()
    summed = (weights.flatten(2, 3) @ block.values).view_as(block.queries)
    return (summed / total).nan_to_num(0.0)
