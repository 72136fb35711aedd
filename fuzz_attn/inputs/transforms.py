"""Variants: the tensors of a case changed so that the exact answer is known, or stays as it is.

Every function takes tensors that were just made, changes them in place where their shape stays, and returns them or
new ones over them. New memory is guarded like the old: poison around it, and wherever no row is copied to.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, TypeAlias, overload

import numpy as np
import torch

from fuzz_attn.case.families import SPLIT_CACHES
from fuzz_attn.inputs.poison import slot_poison
from fuzz_attn.inputs.storage import GUARD_BYTES, poisoned, tensors_over
from fuzz_attn.inputs.tensors import AttentionTensors, storage_bytes

Change: TypeAlias = Callable[[torch.Tensor, torch.dtype], torch.Tensor]
"""From stored numbers float64 ``[count, num_kv_heads, head_size]`` of a type to others that are exact in it."""

StoredAt: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as integers of the elements' size, which copy and compare exactly in every type."""
    return tensor.view(_BITS[tensor.dtype.itemsize])


def arranged(tensors: AttentionTensors, order: Sequence[int | None]) -> tuple[AttentionTensors, torch.Tensor]:
    """Return the batch with its sequences in another order, and for each new token the old one, int64.

    ``order`` names old sequences, some or all of them; None is a new empty sequence, whose context is as long as the
    longest sequence and lies in page 0 as far as the table is concerned.
    """
    starts = list(accumulate(tensors.query_lens, initial=0))
    context_lens = tuple(tensors.max_seq_len if old is None else tensors.context_lens[old] for old in order)
    query_lens = tuple(0 if old is None else tensors.query_lens[old] for old in order)
    kept = [range(starts[old], starts[old + 1]) for old in order if old is not None]
    tokens = torch.tensor([token for span in kept for token in span], dtype=torch.int64, device=tensors.query.device)
    rows = len(tokens) + tensors.query.shape[0] - starts[-1]
    seq_lens = [query_len + context_len for query_len, context_len in zip(query_lens, context_lens, strict=True)]
    changed = dataclasses.replace(
        tensors,
        new_keys=_arranged_rows(tensors.new_keys, tokens, rows),
        new_values=_arranged_rows(tensors.new_values, tokens, rows),
        answers=tuple(old is None or tensors.answers[old] for old in order) if tensors.answers else (),
        reads_dense=tuple(old is not None and tensors.reads_dense[old] for old in order) if tensors.reads_dense else (),
        query=_arranged_rows(tensors.query, tokens, rows),
        output=with_rows(tensors.output, bits_of(tensors.output)[:0], rows),
        query_start_loc=numbers_like(tensors.query_start_loc, list(accumulate(query_lens, initial=0))),
        seq_lens=numbers_like(tensors.seq_lens, seq_lens),
        block_table=_arranged_table(tensors, order),
        query_lens=query_lens,
        context_lens=context_lens,
    )
    return changed, tokens


def with_pages_reversed(tensors: AttentionTensors) -> AttentionTensors:
    """Return the tensors with every physical page moved: the first to the place of the last, and so on.

    Pages that have no memory stay where they are.
    """
    first, last, near = tensors.first_block, tensors.key_cache.shape[0] - 1, tensors.near()
    for cache in (near.key_cache, near.value_cache):
        bits = bits_of(cache)
        bits.copy_(bits.flip(0))
    for row, pages in zip(tensors.block_table, _pages_used(tensors), strict=True):
        row[:pages] = first + last - row[:pages]
    return tensors


def with_heads_reversed(tensors: AttentionTensors) -> AttentionTensors:
    """Return the tensors with all heads in reverse order: KV heads with their groups, slopes and sinks included."""
    axis = 1 if tensors.family in SPLIT_CACHES else 2
    near = tensors.near()
    places = [(tensors.query, 1), (near.key_cache, axis), (near.value_cache, axis), (tensors.new_keys, 1)]
    places += [(tensors.new_values, 1), (tensors.alibi_slopes, 0), (tensors.sinks, 0)]
    for tensor, dim in places:
        if tensor is not None:
            bits = bits_of(tensor)
            bits.copy_(bits.flip(dim))
    return tensors


def keys_changed(tensors: AttentionTensors, change: Change) -> AttentionTensors:
    """Return the tensors with every key that is read changed, as stored: in the cache, and densely packed."""
    view = tensors.key_cache if tensors.family not in SPLIT_CACHES else tensors.key_cache.permute(0, 3, 1, 2, 4)
    return _changed(tensors, view, tensors.keys_at, tensors.new_keys, change)


def values_changed(tensors: AttentionTensors, change: Change) -> AttentionTensors:
    """Return the tensors with every value that is read changed, as stored: in the cache, and densely packed."""
    view = tensors.value_cache if tensors.family not in SPLIT_CACHES else tensors.value_cache.permute(0, 3, 1, 2)
    return _changed(tensors, view, tensors.values_at, tensors.new_values, change)


def coarse(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float64 numbers of a type rounded so that the sum of any two, or twice any, is exact in it.

    They become multiples of a power of two, with two bits fewer than the type has, and at most half of its largest.
    """
    step, half = grid(numbers, dtype)
    return (numbers / step).round().clamp(-half, half) * step


def grid(numbers: torch.Tensor, dtype: torch.dtype) -> tuple[float, int]:
    """Return the step of :func:`coarse` and how many steps there are on either side of 0."""
    info = torch.finfo(dtype)
    half = round(0.5 / info.eps)
    largest = float(numbers.abs().max()) if numbers.numel() else 0.0
    step = 2.0 ** math.ceil(math.log2(largest / half)) if largest else 1.0
    most = 2.0 ** math.floor(math.log2(info.max / (2 * half)))
    return min(max(step, info.smallest_normal * info.eps), most), half


class Shift:
    """The addition of one vector ``[num_kv_heads, head_size]`` to coarse numbers, exact in their type.

    ``vector`` points along ``direction``, whose elements are -1, 0 or 1, as far as the numbers go; known once added.
    """

    def __init__(self, direction: torch.Tensor) -> None:
        self.direction = direction
        self.vector = torch.zeros_like(direction)

    def __call__(self, numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the sums."""
        step, half = grid(numbers, dtype)
        self.vector = self.direction * (step * half)
        return numbers + self.vector


def constant(tensors: AttentionTensors, shape: tuple[int, ...], value: float) -> torch.Tensor:
    """Return a dense, guarded float32 tensor of one value, on the device of the others."""
    memory = poisoned(shape, np.uint32, slot_poison("float32", "nan"))
    memory[...] = np.float32(value).view(np.uint32)
    return tensors_over(memory, (memory,), torch.float32, str(tensors.query.device))[0]


def in_float32(tensors: AttentionTensors) -> AttentionTensors:
    """Return the same problem with inputs of float32 and without scales of them, for the oracle alone."""
    tensors = tensors.near()
    return dataclasses.replace(
        tensors,
        query=tensors.query.float(),
        key_cache=tensors.key_cache.view(tensors.kv_dtype).float(),
        value_cache=tensors.value_cache.view(tensors.kv_dtype).float(),
        new_keys=None if tensors.new_keys is None else tensors.new_keys.float(),
        new_values=None if tensors.new_values is None else tensors.new_values.float(),
        kv_dtype=torch.float32,
        q_scale=None,
        k_scale=None,
        v_scale=None,
    )


def with_rows(like: torch.Tensor, held: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a tensor with the strides of ``like``; its first rows hold the bits ``held``, all else its poison."""
    margin = GUARD_BYTES // like.dtype.itemsize
    poison = bits_of(storage_bytes(like)[: like.dtype.itemsize].view(like.dtype))
    memory = poison.repeat(2 * margin + rows * like.stride(0))
    changed = memory.as_strided((rows, *like.shape[1:]), like.stride(), margin)
    changed[: held.shape[0]] = held
    return changed.view(like.dtype)


def numbers_like(like: torch.Tensor, numbers: list[int]) -> torch.Tensor:
    """Return a dense, guarded vector of integers, of the type and poison of another one."""
    held = torch.tensor(numbers, dtype=like.dtype, device=like.device)
    return with_rows(like, bits_of(held), len(numbers))


def _changed(
    tensors: AttentionTensors, view: torch.Tensor, stored_at: StoredAt, dense: torch.Tensor | None, change: Change
) -> AttentionTensors:
    """Return the tensors with the numbers that some row reads changed; slots that share a page are changed once."""
    blocks, slots, tokens = _places_read(tensors)
    dense = dense if len(tokens) else None
    parts = [stored_at(blocks, slots).double()]
    if dense is not None:
        parts.append(dense[tokens].double())
    if dense is None or dense.dtype == tensors.kv_dtype:
        together = change(torch.cat(parts), tensors.kv_dtype)
        parts = [together[: len(blocks)], together[len(blocks) :]]
    else:
        parts = [change(part, dtype) for part, dtype in zip(parts, (tensors.kv_dtype, dense.dtype), strict=True)]
    bits_of(view)[blocks, slots] = bits_of(parts[0].to(tensors.kv_dtype)).view(len(blocks), *view.shape[2:])
    if dense is not None:
        bits_of(dense)[tokens] = bits_of(parts[1].to(dense.dtype))
    return tensors


def _places_read(tensors: AttentionTensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the blocks and slots of all keys that some row reads from the caches, and the tokens of the others."""
    device, size = tensors.query.device, tensors.block_size
    starts = list(accumulate(tensors.query_lens, initial=0))
    blocks, slots, tokens = [], [], []
    for index, (query_len, context_len) in enumerate(zip(tensors.query_lens, tensors.context_lens, strict=True)):
        if not query_len or (tensors.answers and not tensors.answers[index]):
            continue
        dense = bool(tensors.reads_dense) and tensors.reads_dense[index]
        first = max(0, context_len - tensors.window + 1) if tensors.window else 0
        position = torch.arange(first, max(first, context_len if dense else context_len + query_len), device=device)
        blocks.append(tensors.block_table[index, position // size].long())
        slots.append(position % size)
        tokens.append(torch.arange(*((starts[index], starts[index + 1]) if dense else (0, 0)), device=device))
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return torch.cat([none, *blocks]), torch.cat([none, *slots]), torch.cat([none, *tokens])


@overload
def _arranged_rows(tensor: torch.Tensor, tokens: torch.Tensor, rows: int) -> torch.Tensor: ...
@overload
def _arranged_rows(tensor: None, tokens: torch.Tensor, rows: int) -> None: ...
def _arranged_rows(tensor: torch.Tensor | None, tokens: torch.Tensor, rows: int) -> torch.Tensor | None:
    return None if tensor is None else with_rows(tensor, bits_of(tensor)[tokens], rows)


def _arranged_table(tensors: AttentionTensors, order: Sequence[int | None]) -> torch.Tensor:
    table = with_rows(tensors.block_table, bits_of(tensors.block_table)[:0], len(order))
    for row, old in enumerate(order):
        if old is None:
            table[row, : -(-tensors.max_seq_len // tensors.block_size)] = 0
        else:
            table[row] = tensors.block_table[old]
    return table


def _pages_used(tensors: AttentionTensors) -> list[int]:
    """Return how many entries of each sequence's row of the block table mean a page."""
    lengths = (query + context for query, context in zip(tensors.query_lens, tensors.context_lens, strict=True))
    return [-(-length // tensors.block_size) for length in lengths]
