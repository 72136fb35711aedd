"""Accesses: which row, key or entry of a named tensor an access means that a sanitizer reports."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from fuzz_attn.backends.backend import Observation
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.forensics.explanation import Reason, count, cut_words, rows_of_case
from fuzz_attn.inputs.batch_rows import page_map
from fuzz_attn.inputs.tensors import AttentionTensors

NAMES: Final = {
    "query": "q",
    "new_keys": "the new keys",
    "new_values": "the new values",
    "key_cache": "the key cache",
    "value_cache": "the value cache",
    "alibi_slopes": "the slopes",
    "sinks": "the sinks",
    "query_start_loc": "the starts of the sequences",
    "seq_lens": "the sequence lengths",
    "out": "the output",
}
_REASONS: Final[dict[str, Reason]] = {
    "block_table": "page",
    "qq_bias": "bias",
    "alibi_slopes": "slope",
    "sinks": "sink",
}
DEAD_ENTRY: Final = ", a number that dead entries of the block table hold"
CACHES: Final = ("key_cache", "value_cache")
_OF_ORDER: Final = frozenset(("race", "conflicting_store", "unordered_load"))
SMALLEST_BLOCK: Final = 16
"""Heads of fewer columns are padded to this size, and others to a power of two."""
_PACKED: Final = ("query", "out", "new_keys", "new_values")


def accessed(observation: Observation, tensors: AttentionTensors) -> tuple[str, int] | None:
    """Return the name of the tensor that an access means, and the offset of its element from the tensor's first one.

    None where the access is to a tensor that the target has made itself.
    """
    if not observation.address:
        return None
    for name, tensor in _named(tensors).items():
        start, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        if start <= observation.address < start + max(size, 1):
            ahead = (observation.address - tensor.data_ptr()) // tensor.element_size()
            return name, ahead + observation.offset
    return None


def _named(tensors: AttentionTensors) -> dict[str, torch.Tensor]:
    """Return every input and output by its name."""
    return dict(tensors.inputs()) | {name: output.tensor for name, output in tensors.outputs.items()}


def reason_of_access(observation: Observation, tensors: AttentionTensors, case: AttentionCase) -> Reason:
    """Return the reason for a sanitizer's finding, by the tensor that it is about."""
    found = accessed(observation, tensors)
    if observation.kind in _OF_ORDER:
        return "race"
    by_writes: Reason = "unwritten" if observation.kind == "uninitialised" else "address"
    if found is None:
        return by_writes
    name, offset = found
    tensor = _named(tensors)[name]
    behind = name in ("new_keys", "new_values") and offset >= tensor.shape[0] * tensor.stride(0)
    if name in CACHES and _of_wrong_page(_place(name, offset, tensors)[0], case):
        return "page"
    whole = not is_padded(tensor.shape[-1])  # else it may be a column behind the head size
    return "tail" if behind and whole else _REASONS.get(name, by_writes)


def is_padded(size: int) -> bool:
    """Return whether a block of a kernel has more columns than a head of a size: it has a power of two, at least 16.

    >>> is_padded(16), is_padded(8), is_padded(24)
    (False, True, True)
    """
    return size < SMALLEST_BLOCK or size & (size - 1) != 0


def element_words(observation: Observation, tensors: AttentionTensors, case: AttentionCase) -> str:
    """Return which element an access means, in words; empty where that is not known."""
    found = accessed(observation, tensors)
    if found is None:
        return ""
    name, offset = found
    tensor = _named(tensors)[name]
    words = ""
    if name == "block_table":
        words = _entry(offset, tensor, case)
    elif name == "qq_bias":
        words = _element_of_bias(offset, tensor)
    elif name in _PACKED:
        words = packed_words(name, offset, tensor, case)
    elif name in CACHES:
        words = _slot(name, offset, tensors, case)
    elif tensor.dim() == 1 or name in tensors.outputs:
        words = element_of(tensor, offset, NAMES.get(name, f"the output {name}"))
    return words


def element_of(tensor: torch.Tensor, offset: int, name: str) -> str:
    """Return an element of a tensor of any shape in words."""
    return f"element {offset} of {name}, which has {tensor.numel()}"


def _entry(offset: int, table: torch.Tensor, case: AttentionCase) -> str:
    """Return the entry of a block table in words, with the keys that its page holds."""
    stride, size = table.stride(0), case.pages.block_size
    sequence = min(max(offset // stride, 0), len(case.sequences) - 1) if stride else 0
    column = offset - sequence * stride
    pages = -(-case.sequences[sequence].seq_len // size) if case.sequences else 0
    words = f"entry {column} of sequence {sequence}'s row of the block table"
    return f"{words}, for keys {column * size} to {(column + 1) * size - 1}; the sequence has {count(pages, 'page')}"


def _slot(name: str, offset: int, tensors: AttentionTensors, case: AttentionCase) -> str:
    """Return the slot of a cache that an element belongs to by the strides, which may lie outside of its pages."""
    page, slot, head, *_ = _place(name, offset, tensors)
    outside = ", behind the last page" * (page >= tensors.key_slots.shape[0]) + ", before the first page" * (page < 0)
    why = _of_wrong_page(page, case) * bool(outside)
    return f"slot {slot} of page {page}, head {head}, of {NAMES[name]}{outside}{why}"


def _place(name: str, offset: int, tensors: AttentionTensors) -> list[int]:
    """Return page, slot, head and column of an element of a cache by the strides."""
    slots = tensors.key_slots if name == "key_cache" else tensors.value_slots
    place, rest = [0] * slots.dim(), offset
    for axis in sorted(range(slots.dim()), key=slots.stride, reverse=True):
        found = rest // slots.stride(axis) if slots.stride(axis) else 0
        place[axis] = max(0, min(found, slots.shape[axis] - 1)) if axis else found
        rest -= place[axis] * slots.stride(axis)
    return place


def _of_wrong_page(page: int, case: AttentionCase) -> str:
    """Return why a page is read that no sequence has, in words; nothing where the page does not tell."""
    pages = page_map(case)
    numbers = np.unique(pages.block_table).tolist()
    if page in numbers and not pages.first_block <= page < pages.num_blocks:
        return DEAD_ENTRY
    cut = (cut_words(page, number) for number in numbers if pages.first_block <= number < pages.num_blocks)
    return next(filter(None, cut), "")


def _element_of_bias(offset: int, bias: torch.Tensor) -> str:
    """Return the element of the query-query bias in words, counted by the larger of its strides first."""
    strides = bias.stride()
    outer = 0 if strides[0] >= strides[1] else 1
    place = [0, 0]
    place[outer], rest = divmod(offset, strides[outer]) if strides[outer] else (0, offset)
    place[1 - outer] = rest // strides[1 - outer] if strides[1 - outer] else 0
    rows, columns = bias.shape
    return f"row {place[0]}, column {place[1]} of the query-query bias, which has {rows} x {columns} elements"


def packed_words(name: str, offset: int, tensor: torch.Tensor, case: AttentionCase) -> str:
    """Return the token and the head of an element of a packed tensor, which may lie behind that row's last column."""
    token, rest = divmod(offset, tensor.stride(0))
    head = min(rest // tensor.stride(1), tensor.shape[1] - 1)
    column = rest - head * tensor.stride(1)
    own = next((row for row in rows_of_case(case) if row.token == token), None)
    if own is None:
        return f"row {token} of {NAMES[name]}, which belongs to no token"
    words = f"the row of {own.words}, head {head}, of {NAMES[name]}"
    return f"column {column} of {words}, which has {tensor.shape[2]}" if column >= tensor.shape[2] else words
