"""Heatmaps: the recovered weights of one head of one sequence, cut to what a page can show."""

from __future__ import annotations

from typing import Final

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.forensics.cells import Array
from fuzz_attn.forensics.explanation import Heatmap
from fuzz_attn.forensics.recovery import Recovered
from fuzz_attn.forensics.words import Row, rows_of_case

ROWS: Final = 24
KEYS: Final = 48


def heatmap_of(found: Recovered, uniform: Recovered, case: AttentionCase) -> Heatmap | None:
    """Return the weights around the most wrong row, with the slots of the last page behind the sequence's end.

    ``uniform`` are the weights for equal scores, which tell what each row sees.
    """
    error = np.abs(np.nan_to_num(found.actual, nan=1.0) - found.expected)
    error = np.where(found.wrong, error, 0.0).sum(axis=-1)
    rows = rows_of_case(case)
    if not rows:
        return None
    worst = max(rows, key=lambda row: float(error[row.token, row.head]))
    same = [row for row in rows if (row.sequence, row.head) == (worst.sequence, worst.head)]
    first = max(0, min(worst.query - ROWS // 2, len(same) - ROWS))
    shown = same[first : first + ROWS]
    places = found.cells.keys_of(worst.sequence, worst.kv_head), found.cells.tail_of(worst.sequence, worst.kv_head)
    cells = np.concatenate(places)
    start = max(0, min(_first_key(found, shown, cells), worst.position + 1 - KEYS // 2))
    cells = cells[start : start + KEYS]
    return Heatmap(
        worst.sequence,
        worst.head,
        tuple(row.query for row in shown),
        start,
        case.sequences[worst.sequence].seq_len,
        _weights(found.actual, shown, cells),
        _weights(found.expected, shown, cells),
        tuple(
            "".join("1" if weight > 0 else "0" for weight in row) for row in _weights(uniform.expected, shown, cells)
        ),
        uniform=found is uniform,
    )


def _first_key(found: Recovered, rows: list[Row], cells: Array) -> int:
    """Return the first key that any of the rows attends or should attend."""
    used = np.zeros(len(cells), dtype=np.bool_)
    for row in rows:
        for weights in (found.actual, found.expected):
            used |= (cells >= 0) & ~(np.abs(weights[row.token, row.head, cells]) < 1e-6)
    places = np.flatnonzero(used)
    return int(places[0]) if len(places) else 0


def _weights(weights: Array, rows: list[Row], cells: Array) -> tuple[tuple[float, ...], ...]:
    picked = (np.where(cells >= 0, weights[row.token, row.head, cells], -1.0) for row in rows)
    return tuple(tuple(round(float(weight), 6) if np.isfinite(weight) else -1.0 for weight in row) for row in picked)
