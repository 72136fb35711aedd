"""Divisions: whether rows attend the right keys, and whether parts of them are divided by the sums of their weights.

With equal scores a key of a part that is not divided weighs as many times too much as its part has keys.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.forensics.attended_keys import EVEN, TWICE, Reading, Recovered, readings
from fuzz_attn.forensics.explanation import Finding, rows_of_case

LEAST: Final = 0.02
"""Share of its right weight from which a key is attended, if only too little."""


def keys_are_right(found: Recovered, case: AttentionCase) -> bool:
    """Return whether every row attends the keys that it sees, each of them once, and no other; weights may be wrong."""
    for row in rows_of_case(case):
        actual, expected = found.actual[row.token, row.head], found.expected[row.token, row.head]
        seen = expected > 0
        if not np.isfinite(actual).all() or (actual[seen] < LEAST * expected[seen]).any():
            return False
        if (actual[~seen] > LEAST * actual.max(initial=0.0)).any():
            return False
    return not any(reading.twice and reading.doubled for reading in readings(found, case))


def undivided_findings(found: Recovered, case: AttentionCase) -> list[Finding]:
    """Return that parts of the keys are not divided by the sums of their weights; nothing if others are.

    A row whose keys all weigh the same tells nothing: its denominator may lack some of them.
    """
    wrong = readings(found, case)
    runs_of_rows = [_even_runs(reading, found) for reading in wrong]
    if not wrong or not all(runs_of_rows) or any(reading.extra for reading in wrong):
        return []
    every = [run for runs in runs_of_rows for run in runs]
    apart = max(map(len, runs_of_rows)) > 1 and all(max(times for times, _ in runs) > TWICE for runs in runs_of_rows)
    if not apart or any(abs(length / times - round(length / times)) > EVEN for times, length in every):
        return []
    row = wrong[0].row
    sums = f"the weights of {row.words}, head {row.head}, sum to {wrong[0].total:.4g} with equal scores"
    words = f"{sums}: outputs of parts of the keys are merged that are not divided by the sums of their weights"
    return [Finding("segment", words)]


def _even_runs(reading: Reading, found: Recovered) -> list[tuple[float, int]]:
    """Return how many times too much the keys weigh that a row sees, and how many keys in a row do so."""
    place = (reading.row.token, reading.row.head)
    own = found.cells.keys_of(reading.row.sequence, reading.row.kv_head)[list(reading.visible)]
    runs: list[tuple[float, int]] = []
    for times in (found.actual[place][own] / found.expected[place][own]).tolist():
        same = bool(runs) and abs(times - runs[-1][0]) <= EVEN * abs(times)
        runs = [*runs[:-1], (runs[-1][0], runs[-1][1] + 1)] if same else [*runs, (times, 1)]
    return runs if all(times > 1.0 - EVEN for times, _ in runs) else []
