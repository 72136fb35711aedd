"""Recovery: the weights that the kernel really used, from its outputs for unit vectors as values, and a heatmap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.forensics.cells import Array, Cells
from fuzz_attn.forensics.explanation import Heatmap
from fuzz_attn.forensics.lab import FAR, Lab, beyond
from fuzz_attn.forensics.words import Row, rows_of_case
from fuzz_attn.inputs.tensors import AttentionTensors

NARROW: Final = 128.0
"""The unit of an fp8 output, which has few numbers below 1."""
MOST_LAUNCHES: Final = 96
ROWS: Final = 24
KEYS: Final = 48
"""The largest heatmap."""


@dataclass(frozen=True)
class Recovered:
    """The weight of each cell in each row, float64 ``[num_tokens, num_query_heads, num_cells]``.

    ``expected`` are the oracle's, ``bound`` the largest error of a correct kernel.
    """

    cells: Cells
    actual: Array
    expected: Array
    bound: Array

    @property
    def wrong(self) -> Array:
        """Bool: whether a weight is not as it should be."""
        return beyond(self.actual, self.expected, self.bound) & np.isfinite(self.bound)

    @property
    def far(self) -> Array:
        """Bool: whether a weight is wrong by more than a rounding could make it."""
        largest = self.expected.max(axis=-1, keepdims=True, initial=0.0)
        return self.wrong & beyond(self.actual, self.expected, FAR * largest)


def recovered(lab: Lab, tensors: AttentionTensors, cells: Array | None = None) -> Recovered | None:
    """Return the weights for tensors of a case, which this changes; None where that takes too many launches.

    With ``cells`` only those are probed; the weights of all others are 0. A large case is probed around its first wrong
    row only.
    """
    width = lab.case.heads.head_size
    everything = len(lab.cells) <= MOST_LAUNCHES * width
    probed = cells if cells is not None else np.arange(len(lab.cells)) if everything else lab.focus
    if len(probed) > MOST_LAUNCHES * width:
        return None
    unit = NARROW if is_fp8(lab.case.dtypes.out) else 1.0
    arrays: list[Array] = []
    for first in range(0, len(probed), width):
        some = probed[first : first + width]
        lab.set_values(tensors, some, np.arange(len(some)), unit)
        output = lab.run(tensors)
        parts = output.actual, output.expected, output.bound
        arrays = arrays or [np.zeros((*part.shape[:2], len(lab.cells))) for part in parts]
        for array, part in zip(arrays, parts, strict=True):
            array[..., some] = part[..., : len(some)] / unit
    return Recovered(lab.cells, *arrays)


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
