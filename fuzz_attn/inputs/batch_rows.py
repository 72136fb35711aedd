"""Batch rows: the query tokens and keys of a batch, flattened, each with its sequence and position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.case.visibility import Visibility
from fuzz_attn.inputs.random_bits import Integers


@dataclass(frozen=True)
class Rows:
    """Flat index arrays of a batch. Each is made on first use, as most recipes need few of them or none.

    ``query`` and ``context`` ``[num_seqs]`` are the lengths of the sequences.
    """

    query: Integers
    context: Integers
    visibility: Visibility

    @cached_property
    def total(self) -> Integers:
        """Keys of each sequence ``[num_seqs]``."""
        return self.query + self.context

    @cached_property
    def position(self) -> Integers:
        """Position of each query token in its sequence ``[num_tokens]``; 0 where that is before the first key."""
        found: Integers = np.maximum(self.visibility.position(_ramp(self.query), self.context.repeat(self.query)), 0)
        return found

    @cached_property
    def first(self) -> Integers:
        """First position that each query token sees ``[num_tokens]``."""
        return self.visibility.first(self.position)

    @cached_property
    def start(self) -> Integers:
        """Start of each query token's sequence among all keys ``[num_tokens]``."""
        return (self.total.cumsum() - self.total).repeat(self.query)

    @cached_property
    def seq_len(self) -> Integers:
        """Length of each query token's sequence ``[num_tokens]``."""
        return self.total.repeat(self.query)

    @cached_property
    def key_position(self) -> Integers:
        """Position of each key in its sequence ``[total_keys]``."""
        return _ramp(self.total)

    @cached_property
    def key_sequence(self) -> Integers:
        """Sequence of each key ``[total_keys]``."""
        return np.arange(len(self.total)).repeat(self.total)

    @cached_property
    def key_context(self) -> Integers:
        """Context length of each key's sequence ``[total_keys]``."""
        return self.context.repeat(self.total)

    @cached_property
    def key_seq_len(self) -> Integers:
        """Length of each key's sequence ``[total_keys]``."""
        return self.total.repeat(self.total)


def rows_of(case: AttentionCase) -> Rows:
    """Return the flattened rows and keys of a case; callers must not change them."""
    return _rows_of(case.sequences, case.visibility)


@lru_cache(maxsize=1)
def _rows_of(sequences: tuple[Sequence, ...], visibility: Visibility) -> Rows:
    """Return the rows of a batch and keep them: the numbers and the pages of a case use the same ones."""
    return Rows(
        query=np.array([s.query_len for s in sequences], dtype=np.int64),
        context=np.array([s.context_len for s in sequences], dtype=np.int64),
        visibility=visibility,
    )


def _ramp(lengths: Integers) -> Integers:
    """Return 0, 1, ... length - 1 for each length, one after the other."""
    ends = lengths.cumsum()
    return np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64) - (ends - lengths).repeat(lengths)
