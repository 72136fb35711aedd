"""Words: phrases for keys, rows and numbers that several findings share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from fuzz_attn.case.attention_case import AttentionCase


class Row(NamedTuple):
    """One query token of one query head, with its place in its sequence and the KV head that it must read."""

    token: int
    head: int
    sequence: int
    query: int
    position: int
    kv_head: int

    @property
    def words(self) -> str:
        """The row without its head."""
        return f"query {self.query} of sequence {self.sequence}"


def rows_of_case(case: AttentionCase) -> list[Row]:
    """Return all rows that the target answers, token by token."""
    rows, token, group = [], 0, case.heads.num_queries_per_kv
    for index, sequence in enumerate(case.sequences):
        for query in range(sequence.query_len):
            if case.answers[index]:
                position = sequence.context_len + query
                heads = range(case.heads.num_query_heads)
                rows += [Row(token, head, index, query, position, head // group) for head in heads]
            token += 1
    return rows


def ranges(numbers: Iterable[int]) -> str:
    """Return integers in words: ``3``, ``3 to 7``, ``1, 3 and 5 to 8``."""
    ordered = sorted(set(numbers))
    runs = [list(run) for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    parts = []
    for run in runs:
        first, last = run[0][1], run[-1][1]
        parts += [f"{first} to {last}"] if last - first > 1 else [str(number) for _, number in run]
    shown = parts if len(parts) <= 6 else [*parts[:5], f"{len(parts) - 5} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else "none"


def keys(positions: Iterable[int]) -> str:
    """Return keys in words: ``key 3`` or ``keys 3 to 7``."""
    ordered = sorted(set(positions))
    return f"key{'s' * (len(ordered) != 1)} {ranges(ordered)}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it must be."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def factor(number: float) -> str:
    """Return a factor in words: as a fraction where it is one of a small integer."""
    inverse = 1.0 / number if number else math.inf
    if abs(number) < 1.0 and abs(inverse) < 1000 and abs(inverse - round(inverse)) < 1e-3 * abs(inverse):
        return f"1/{round(inverse)}"
    return f"{number:.4g}"
