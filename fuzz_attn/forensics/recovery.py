"""Recovery: the weights that the kernel really used, from its outputs for unit vectors as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.forensics.cells import Array, Cells
from fuzz_attn.forensics.lab import Lab
from fuzz_attn.inputs.tensors import AttentionTensors

NARROW: Final = 128.0
"""The unit of an fp8 output, which has few numbers below 1."""
MOST_LAUNCHES: Final = 96
FAR: Final = 0.03
"""Share of the largest weight of a row beyond which an error is no rounding."""


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
        wrong: Array = ~(np.abs(self.actual - self.expected) <= self.bound) & np.isfinite(self.bound)
        return wrong

    @property
    def far(self) -> Array:
        """Bool: whether a weight is wrong by more than a rounding could make it."""
        error = np.abs(self.actual - self.expected)
        largest = self.expected.max(axis=-1, keepdims=True, initial=0.0)
        far: Array = self.wrong & ~(error <= FAR * largest)
        return far


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
