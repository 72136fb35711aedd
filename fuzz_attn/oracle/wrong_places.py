"""Wrong places: one word for where in the output the wrong elements are, a part of a failure's signature."""

from __future__ import annotations

import torch

from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.verdict import Where


def where_wrong(wrong: torch.Tensor, tensors: AttentionTensors) -> Where:
    """Return the narrowest word that describes all wrong elements ``[num_tokens, num_query_heads, head_size]``.

    In order: the columns past the largest power of two, the last row of each sequence, the rows whose window hides a
    key, one sequence of several, some heads, some columns, every token (``everywhere``), anything else (``scattered``).
    A word that describes every element of the batch is skipped.
    """
    columns, heads = wrong.any(0).any(0), wrong.any(2).any(0)
    tokens = wrong.any(2).any(1)
    sequences, rows = sequence_of_tokens(tensors.query_lens)
    query_lens = torch.tensor(tensors.query_lens)
    position = rows + torch.tensor(tensors.context_lens)[sequences]
    head_size = wrong.shape[2]
    first_padded = 1 << (head_size.bit_length() - 1)
    narrow: list[tuple[Where, bool]] = [
        ("padded_head", first_padded < head_size and not bool(columns[:first_padded].any())),
        ("tail_rows", _confined(tokens, rows == query_lens[sequences] - 1)),
        ("window_rows", tensors.window > 0 and _confined(tokens, tensors.visibility.cuts(position))),
        ("one_sequence", _confined(tokens, sequences == sequences[tokens][0])),
        ("some_heads", not bool(heads.all())),
        ("some_columns", not bool(columns.all())),
        ("everywhere", bool(tokens.all())),
    ]
    return next((name for name, holds in narrow if holds), "scattered")


def sequence_of_tokens(query_lens: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sequence of each token and its row in that sequence, int64 on the CPU."""
    lengths = torch.tensor(query_lens, dtype=torch.int64)
    sequences = torch.repeat_interleave(torch.arange(len(query_lens)), lengths)
    starts = lengths.cumsum(0) - lengths
    return sequences, torch.arange(len(sequences)) - starts[sequences]


def _confined(tokens: torch.Tensor, place: torch.Tensor) -> bool:
    """Return whether all wrong tokens are in a place that is not the whole batch."""
    return not bool((tokens & ~place).any()) and not bool(place.all())
