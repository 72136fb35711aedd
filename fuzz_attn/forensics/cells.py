"""Cells: every place that holds one value vector of one KV head, and which key of which sequence it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.inputs.page_map import PageMap, page_map
from fuzz_attn.inputs.tensors import AttentionTensors

Array: TypeAlias = np.typing.NDArray[Any]

PACKED: Final = -1
"""The block of a cell in the packed new keys and values; its slot is the row there."""


def by_row(of_elements: Array) -> Array:
    """Return whether any element of the last axis is true."""
    rows: Array = np.asarray(of_elements.any(axis=-1))
    return rows


class Owner(NamedTuple):
    """A key that lies in a cell. ``held`` is false for a slot whose contents no kernel may use."""

    sequence: int
    position: int
    held: bool


@dataclass(frozen=True)
class Cells:
    """The cells of a case: ``block``, ``slot`` and ``head``, int64 ``[num_cells]`` each.

    Blocks count from the first page that has memory.
    """

    case: AttentionCase
    pages: PageMap
    block: Array
    slot: Array
    head: Array

    def __len__(self) -> int:
        return len(self.block)

    @cached_property
    def owners(self) -> dict[tuple[int, int], list[Owner]]:
        """The keys that lie at a (block, slot), those that may be used first."""
        found: dict[tuple[int, int], list[Owner]] = {}
        size, row = self.case.pages.block_size, 0
        for index, sequence in enumerate(self.case.sequences):
            packed_from = sequence.context_len if self.case.reads_packed[index] else sequence.seq_len
            for position in range(-(-sequence.seq_len // size) * size):
                block = int(self.pages.block_table[index, position // size]) - self.pages.first_block
                owner = Owner(index, position, position < packed_from)
                found.setdefault((block, position % size), []).append(owner)
            for position in range(packed_from, sequence.seq_len):
                new = row + position - sequence.context_len
                found.setdefault((PACKED, new), []).append(Owner(index, position, True))
            row += sequence.query_len
        for owners in found.values():
            owners.sort(key=lambda owner: not owner.held)
        return found

    @cached_property
    def numbers(self) -> dict[tuple[int, int, int], int]:
        """The number of each cell by (block, slot, head)."""
        places = zip(self.block.tolist(), self.slot.tolist(), self.head.tolist(), strict=True)
        return {place: number for number, place in enumerate(places)}

    def of_key(self, sequence: int, position: int) -> tuple[int, int]:
        """Return (block, slot) of a key that the sequence may use."""
        case, size = self.case, self.case.pages.block_size
        tokens = case.sequences[sequence]
        if case.reads_packed[sequence] and position >= tokens.context_len:
            start = sum(other.query_len for other in case.sequences[:sequence])
            return PACKED, start + position - tokens.context_len
        return int(self.pages.block_table[sequence, position // size]) - self.pages.first_block, position % size

    def keys_of(self, sequence: int, head: int) -> Array:
        """Return the number of the cell of each key of a sequence, for one KV head."""
        length = self.case.sequences[sequence].seq_len
        places = (self.of_key(sequence, position) for position in range(length))
        return np.array([self.numbers[(*place, head)] for place in places], dtype=np.int64)

    def tail_of(self, sequence: int, head: int) -> Array:
        """Return the numbers of the cells of a sequence's last page behind its end; none where the end is packed."""
        length = self.case.sequences[sequence].seq_len
        block, last = self.of_key(sequence, length - 1) if length else (PACKED, 0)
        slots = range(last + 1, self.case.pages.block_size if block != PACKED else 0)
        return np.array([self.numbers[block, slot, head] for slot in slots], dtype=np.int64)


def cells_of(case: AttentionCase, tensors: AttentionTensors) -> Cells:
    """Return all cells of a case: those of the caches, then those of the packed values."""
    pages, heads = page_map(case), tensors.num_kv_heads
    blocks = pages.num_blocks - pages.first_block
    grids = [np.indices((blocks, case.pages.block_size, heads)).reshape(3, -1)]
    if tensors.new_values is not None:
        packed = np.indices((1, case.num_tokens, heads)).reshape(3, -1)
        packed[0] = PACKED
        grids.append(packed)
    block, slot, head = np.concatenate(grids, axis=1)
    return Cells(case, pages, block, slot, head)
