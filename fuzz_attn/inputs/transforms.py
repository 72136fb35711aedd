"""Transforms: tensors of a case changed so that the new exact output is the old one, or follows from it.

Every function takes tensors that were just made. It changes them in place where their shape stays, and returns them or
new tensors over the same memory. New memory has guards of poison too, and poison where no row is copied to.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import torch

from fuzz_attn.inputs.storage import bits_of, in_one_row, poisoned, slot_poison, tensors_over, with_rows
from fuzz_attn.inputs.tensors import AXES, AttentionTensors

Change: TypeAlias = Callable[[torch.Tensor, torch.dtype], torch.Tensor]
"""Maps stored numbers of a type, float64 ``[count, num_kv_heads, head_size]``, to others that are exact in it."""

StoredAt: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def arranged(tensors: AttentionTensors, order: Sequence[int | None]) -> tuple[AttentionTensors, torch.Tensor]:
    """Return the batch with its sequences in another order, and for each new token the index of the old one, int64.

    ``order`` names some or all of the old sequences. None is a new empty sequence: its context is as long as the
    longest sequence, and its table entries are page 0. Packed keys move with their sequence, and a new one has none.
    """
    starts, packed = list(accumulate(tensors.query_lens, initial=0)), tensors.cache_format.is_packed
    longest = 0 if packed else tensors.max_seq_len
    context_lens = tuple(longest if old is None else tensors.context_lens[old] for old in order)
    query_lens = tuple(0 if old is None else tensors.query_lens[old] for old in order)
    kept = [range(starts[old], starts[old + 1]) for old in order if old is not None]
    tokens = torch.tensor([token for span in kept for token in span], dtype=torch.int64, device=tensors.query.device)
    rows = len(tokens) + tensors.query.shape[0] - starts[-1]
    seq_lens = [query_len + context_len for query_len, context_len in zip(query_lens, context_lens, strict=True)]
    changed = dataclasses.replace(
        tensors,
        **_of_tokens(tensors, tokens, rows),
        answers=tuple(old is None or tensors.answers[old] for old in order) if tensors.answers else (),
        reads_packed=tuple(old is not None and tensors.reads_packed[old] for old in order)
        if tensors.reads_packed
        else (),
        custom_mask=_arranged_mask(tensors, order),
        query_start_loc=numbers_like(tensors.query_start_loc, list(accumulate(query_lens, initial=0))),
        seq_lens=numbers_like(tensors.seq_lens, seq_lens),
        block_table=_arranged_table(tensors, order),
        query_lens=query_lens,
        context_lens=context_lens,
    )
    return (_repacked(changed, tensors) if packed else changed), tokens


def _repacked(changed: AttentionTensors, tensors: AttentionTensors) -> AttentionTensors:
    """Return changed tensors with packed keys and values in the order of the pages in their table, which are old ones.

    As many pages as before belong to no sequence.
    """
    used, table = _pages_used(changed), changed.block_table
    rows = [row[:pages] for row, pages in zip(table, used, strict=False)]
    blocks = torch.cat([torch.zeros(0, dtype=torch.int64, device=table.device), *(row.long() for row in rows)])
    for row, end in zip(rows, accumulate(used), strict=True):
        row.copy_(torch.arange(end - len(row), end, device=table.device))
    count = max(1, len(blocks) + tensors.key_cache.shape[0] - sum(_pages_used(tensors)))
    keys, values = (_with_pages(cache, blocks, count) for cache in (tensors.key_cache, tensors.value_cache))
    return dataclasses.replace(changed, key_cache=keys, value_cache=values)


def _with_pages(cache: torch.Tensor, blocks: torch.Tensor, count: int) -> torch.Tensor:
    """Return a cache of packed keys or values whose first pages are some of its own; the rest is poison."""
    size, slots = cache.shape[1], in_one_row(cache)
    places = (blocks[:, None] * size + torch.arange(size, device=blocks.device)).flatten()
    changed = with_rows(slots, bits_of(slots)[places], count * size)
    token, *inner = changed.stride()
    return changed.as_strided((count, *cache.shape[1:]), (size * token, token, *inner), changed.storage_offset())


def cut_by_keys(tensors: AttentionTensors, seed: int) -> tuple[AttentionTensors, torch.Tensor]:
    """Return the last tokens of all sequences with more than one page, each twice as a sequence of its own.

    The first half of the batch has the keys of the first pages, the second half all other keys of the same tokens.
    Where a sequence is cut depends on ``seed``. Also returned is the index of each token before, int64. Every key must
    be read from the caches, and the outputs need rows for all of the new batch.
    """
    size, ends = tensors.block_size, list(accumulate(tensors.query_lens))
    counts = [-(-(query + context) // size) for query, context in _lengths(tensors)]
    kept = [old for old, query in enumerate(tensors.query_lens) if query and counts[old] > 1]
    pages = [1 + (seed + old) % (counts[old] - 1) for old in kept]
    lengths = [size * cut for cut in pages]
    seq_lens = [*lengths, *(sum(_lengths(tensors)[old]) - length for old, length in zip(kept, lengths, strict=True))]
    tokens = torch.tensor([ends[old] - 1 for old in kept], dtype=torch.int64, device=tensors.query.device)
    twice, rows = tokens.repeat(2), 2 * len(kept) + tensors.query.shape[0] - ends[-1]
    table = bits_of(tensors.block_table)[kept + kept]
    for row, cut in enumerate(pages, len(kept)):
        table[row, : table.shape[1] - cut] = table[row, cut:].clone()
    changed = dataclasses.replace(
        tensors,
        **_of_tokens(tensors, twice, rows),
        query_start_loc=numbers_like(tensors.query_start_loc, list(range(2 * len(kept) + 1))),
        seq_lens=numbers_like(tensors.seq_lens, seq_lens),
        block_table=with_rows(tensors.block_table, table, 2 * len(kept)),
        query_lens=(1,) * len(twice),
        context_lens=tuple(length - 1 for length in seq_lens),
        answers=(),
        reads_packed=(),
    )
    return (_repacked(changed, tensors) if tensors.cache_format.is_packed else changed), tokens


def with_pages_reversed(tensors: AttentionTensors) -> AttentionTensors:
    """Return the tensors with the order of physical pages reversed; pages without memory stay where they are."""
    first, last, near = tensors.first_block, tensors.key_cache.shape[0] - 1, tensors.near()
    for cache in (near.key_cache,) if tensors.cache_format.is_latent else (near.key_cache, near.value_cache):
        bits = bits_of(cache)
        bits.copy_(bits.flip(0))
    used = _pages_used(tensors)
    for row, pages in zip(tensors.block_table[: len(used)], used, strict=True):
        row[:pages] = first + last - row[:pages]
    return tensors


def with_own_pages(tensors: AttentionTensors) -> AttentionTensors:
    """Return the tensors with a page of its own for each use of a page: later uses get copies behind the others."""
    seen: set[int] = set()
    copied: list[int] = []
    for row, pages in zip(tensors.block_table, _pages_used(tensors), strict=False):
        for column, page in enumerate(row[:pages].tolist()):
            if page in seen:
                row[column] = tensors.key_cache.shape[0] + len(copied)
                copied.append(page)
            seen.add(page)

    def extended(cache: torch.Tensor) -> torch.Tensor:
        held = bits_of(cache)
        return with_rows(cache, torch.cat([held, held[copied]]), len(held) + len(copied))

    key_cache, value_cache = extended(tensors.key_cache), extended(tensors.value_cache)
    return dataclasses.replace(tensors, key_cache=key_cache, value_cache=value_cache)


def with_heads_reversed(tensors: AttentionTensors) -> AttentionTensors:
    """Return the tensors with all heads in reverse order: KV heads with their groups, and what has a part for each."""
    axis = tensors.cache_format.head_axis
    near = tensors.near()
    places = [(getattr(tensors, name), axes.index("head")) for name, axes in AXES.items() if "head" in axes]
    for tensor, dim in (*places, (near.key_cache, axis), (near.value_cache, axis)):
        if tensor is not None:
            bits = bits_of(tensor)
            bits.copy_(bits.flip(dim))
    return tensors


def with_expanded_heads(tensors: AttentionTensors, latent: AttentionTensors) -> AttentionTensors:
    """Return the tensors with the queries of a latent decode, and with its keys for every head as keys and values."""
    bits_of(tensors.query)[...] = bits_of(latent.query)[: tensors.query.shape[0]]
    size = tensors.block_size
    for sequence, (query, context) in enumerate(_lengths(latent)):
        position = torch.arange(query + context if query else 0, device=latent.query.device)
        places = (latent.block_table[sequence, position // size].long(), position % size)
        keys = bits_of(latent.keys_at(*places)).expand(-1, tensors.num_kv_heads, -1)
        own = tensors.block_table[sequence, position // size].long(), position % size
        for slots in (tensors.key_slots, tensors.value_slots):
            bits_of(slots)[own] = keys
    return tensors


def keys_changed(tensors: AttentionTensors, change: Change) -> AttentionTensors:
    """Return the tensors with every key that is read changed as stored, in the cache and packed."""
    return _changed(tensors, tensors.key_slots, tensors.keys_at, tensors.new_keys, change)


def values_changed(tensors: AttentionTensors, change: Change) -> AttentionTensors:
    """Return the tensors with every value that is read changed as stored, in the cache and packed."""
    return _changed(tensors, tensors.value_slots, tensors.values_at, tensors.new_values, change)


def only_values(
    tensors: AttentionTensors, sequence: int, positions: torch.Tensor, head: int, columns: slice
) -> AttentionTensors:
    """Return the tensors with all values that are read set to 0 but those of some keys of a sequence.

    Each of these has in one column the largest magnitude that it had in ``columns`` of the KV head ``head``, now in all
    heads. Keys next to each other share a column and alternate in sign, and all columns have equally many of them.
    """
    packed = bool(tensors.reads_packed) and tensors.reads_packed[sequence]
    new = positions >= tensors.context_lens[sequence] if packed else torch.zeros_like(positions, dtype=torch.bool)
    cached, tokens = positions[~new], positions[new] - tensors.context_lens[sequence]
    tokens += sum(tensors.query_lens[:sequence])
    blocks, slots = tensors.block_table[sequence, cached // tensors.block_size].long(), cached % tensors.block_size
    kept = [tensors.values_at(blocks, slots)[:, head, columns].double()]
    if tensors.new_values is not None:
        kept.append(tensors.new_values[tokens, head, columns].double())
    sizes = torch.cat(kept).abs_().amax(-1)
    index = torch.arange(len(sizes), device=sizes.device)
    spread = torch.zeros(len(sizes), tensors.num_kv_heads, tensors.output.shape[-1], dtype=torch.float64)
    spread = spread.to(sizes.device)
    places = key_columns(len(sizes), spread.shape[-1]).to(sizes.device)
    spread[index, :, places] = torch.where(index % 2 == 0, sizes, -sizes)[:, None]
    tensors = values_changed(tensors, lambda numbers, _: torch.zeros_like(numbers))
    stored = bits_of(spread[: len(cached)].to(tensors.kv_dtype))
    bits_of(tensors.value_slots)[blocks, slots] = stored.view(len(cached), *tensors.value_slots.shape[2:])
    if tensors.new_values is not None and len(tokens):
        bits_of(tensors.new_values)[tokens] = bits_of(spread[len(cached) :].to(tensors.new_values.dtype))
    return tensors


def key_columns(num_keys: int, num_columns: int) -> torch.Tensor:
    """Return the column of each kept key: keys next to each other share one, and all have equally many of them."""
    return torch.arange(num_keys) // -(-num_keys // num_columns)


def coarse(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float64 numbers of a type rounded so that the sum of any two, or twice any, is exact in it.

    They become multiples of a power of two with two bits fewer than the type has, and at most half its largest number.
    """
    step, half = grid(numbers, dtype)
    return (numbers / step).round().clamp(-half, half) * step


def grid(numbers: torch.Tensor, dtype: torch.dtype) -> tuple[float, int]:
    """Return the step of :func:`coarse`, and the number of steps on either side of 0."""
    info = torch.finfo(dtype)
    half = round(0.5 / info.eps)
    largest = float(numbers.abs().max()) if numbers.numel() else 0.0
    step = 2.0 ** math.ceil(math.log2(largest / half)) if largest else 1.0
    most = 2.0 ** math.floor(math.log2(info.max / (2 * half)))
    return min(max(step, info.smallest_normal * info.eps), most), half


class Shift:
    """The addition of one vector ``[num_kv_heads, head_size]`` to coarse numbers, exact in their type.

    ``direction`` has elements -1, 0 and 1. Each call sets ``vector`` to it, times the largest of the coarse numbers.
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
    """Return the same problem with inputs of float32 and without their scales, for the oracle only."""
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


def numbers_like(like: torch.Tensor, numbers: list[int]) -> torch.Tensor:
    """Return a dense, guarded vector of integers, of the type and poison of another one."""
    held = torch.tensor(numbers, dtype=like.dtype, device=like.device)
    return with_rows(like, bits_of(held), len(numbers))


def _changed(
    tensors: AttentionTensors, view: torch.Tensor, stored_at: StoredAt, packed: torch.Tensor | None, change: Change
) -> AttentionTensors:
    """Return the tensors with the numbers that some row reads changed; a slot that two sequences share, only once."""
    blocks, slots, tokens = _places_read(tensors)
    packed = packed if len(tokens) else None
    parts = [stored_at(blocks, slots).double()]
    if packed is not None:
        parts.append(packed[tokens].double())
    if packed is None or packed.dtype == tensors.kv_dtype:
        together = change(torch.cat(parts), tensors.kv_dtype)
        parts = [together[: len(blocks)], together[len(blocks) :]]
    else:
        parts = [change(part, dtype) for part, dtype in zip(parts, (tensors.kv_dtype, packed.dtype), strict=True)]
    bits_of(view)[blocks, slots] = bits_of(parts[0].to(tensors.kv_dtype)).view(len(blocks), *view.shape[2:])
    if packed is not None:
        bits_of(packed)[tokens] = bits_of(parts[1].to(packed.dtype))
    return tensors


def _places_read(tensors: AttentionTensors) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return blocks and slots of all keys that some row reads from the caches, and the tokens of the packed ones."""
    device, size = tensors.query.device, tensors.block_size
    starts = list(accumulate(tensors.query_lens, initial=0))
    blocks, slots, tokens = [], [], []
    for index, (query_len, context_len) in enumerate(_lengths(tensors)):
        if not query_len or (tensors.answers and not tensors.answers[index]):
            continue
        packed = bool(tensors.reads_packed) and tensors.reads_packed[index]
        needed = torch.from_numpy(tensors.needed_keys(index).nonzero()[0]).to(device)
        position, new = needed[needed < context_len] if packed else needed, needed[needed >= context_len] - context_len
        blocks.append(tensors.block_table[index, position // size].long())
        slots.append(position % size)
        tokens.append(starts[index] + new if packed else new[:0])
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return torch.cat([none, *blocks]), torch.cat([none, *slots]), torch.cat([none, *tokens])


def _of_tokens(tensors: AttentionTensors, tokens: torch.Tensor, rows: int) -> dict[str, Any]:
    """Return the outputs, and the inputs with a part for each token, with as many rows and some of the old tokens."""
    changed: dict[str, Any] = {
        "outputs": {name: output.arranged(tokens, rows) for name, output in tensors.outputs.items()}
    }
    for name, axes in AXES.items():
        tensor = getattr(tensors, name)
        if axes[0] == "token" and tensor is not None:
            changed[name] = with_rows(tensor, bits_of(tensor)[tokens], rows)
    return changed


def _arranged_mask(tensors: AttentionTensors, order: Sequence[int | None]) -> torch.Tensor | None:
    if tensors.custom_mask is None:
        return None
    bits, ends = bits_of(tensors.custom_mask), list(accumulate(tensors.mask_sizes, initial=0))
    kept = torch.cat([bits[:0], *(bits[ends[old] : ends[old + 1]] for old in order if old is not None)])
    return with_rows(tensors.custom_mask, kept, len(kept))


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
    return [-(-(query + context) // tensors.block_size) for query, context in _lengths(tensors)]


def _lengths(tensors: AttentionTensors) -> list[tuple[int, int]]:
    """Return the lengths of query and context of each sequence."""
    return list(zip(tensors.query_lens, tensors.context_lens, strict=True))
