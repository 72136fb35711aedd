"""The slopes, biases and sinks of a case as numbers, where they are few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.description import Line

if TYPE_CHECKING:
    from fuzz_attn.inputs.random_bits import Floats

FEW: Final = 16
"""The most numbers that a report lists of one tensor."""


def bias_values(case: AttentionCase) -> list[Line]:
    """Return (what, numbers) pairs: slopes and sinks by head, the bias row by row; nothing for more than a few.

    Sinks are those before their rounding to the recipe's type.
    """
    if case.alibi is None and case.qq_bias is None and case.sinks is None:
        return []
    from fuzz_attn.inputs import biases  # noqa: PLC0415 - imports numpy, which the other commands do without

    found: list[tuple[str, Floats]] = []
    if case.alibi is not None:
        found.append(("slopes", biases.alibi_slopes(case.alibi, case)))
    if case.qq_bias is not None and case.max_query_len**2 <= FEW:
        matrix = biases.qq_bias(case.qq_bias, case)
        found.append(("bias values", matrix[:, : matrix.shape[0]]))
    if case.sinks is not None:
        found.append(("sink values", biases.sinks(case.sinks, case)))
    return [(what, _listed(numbers)) for what, numbers in found if numbers.size <= FEW]


def _listed(numbers: Floats) -> str:
    rows = (", ".join(f"{number:.6g}" for number in row) for row in numbers.reshape(-1, numbers.shape[-1]).tolist())
    return "; ".join(rows)
