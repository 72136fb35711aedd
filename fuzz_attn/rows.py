"""The rows and keys of a batch, flattened: which sequence each belongs to and at which position it sits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuzz_attn.case import AttentionCase
from fuzz_attn.streams import Integers


@dataclass(frozen=True)
class Rows:
    """Flat index arrays of a batch.

    For each query token ``[num_tokens]``: ``position`` in its sequence, ``first`` position that it sees, ``start`` of
    its sequence among all keys, ``seq_len``. For each key ``[total_keys]``: ``key_position``, ``key_sequence``,
    ``key_context`` and ``key_seq_len`` (context and full length of its sequence).
    """

    position: Integers
    first: Integers
    start: Integers
    seq_len: Integers
    key_position: Integers
    key_sequence: Integers
    key_context: Integers
    key_seq_len: Integers


def rows_of(case: AttentionCase) -> Rows:
    """Return the flattened rows and keys of a case."""
    query = np.array([s.query_len for s in case.sequences], dtype=np.int64)
    context = np.array([s.context_len for s in case.sequences], dtype=np.int64)
    total = query + context
    starts = np.cumsum(total) - total
    position = _ramp(query) + np.repeat(context, query)
    first = np.maximum(0, position - case.window + 1) if case.window else np.zeros_like(position)
    return Rows(
        position=position,
        first=first,
        start=np.repeat(starts, query),
        seq_len=np.repeat(total, query),
        key_position=_ramp(total),
        key_sequence=np.repeat(np.arange(len(total)), total),
        key_context=np.repeat(context, total),
        key_seq_len=np.repeat(total, total),
    )


def _ramp(lengths: Integers) -> Integers:
    """Return 0, 1, ... length - 1 for each length, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64) - np.repeat(ends - lengths, lengths)
