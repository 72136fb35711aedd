"""Input precision: how a target multiplies float32, read from what Triton has lowered for its launches."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from fuzz_attn.oracle.rounding_model import InputPrecision
from fuzz_attn.targets.target import Target

COARSEST_FIRST: Final[tuple[InputPrecision, ...]] = ("tf32", "bf16x3", "tf32x3", "bf16x6", "ieee")


def with_precision(target: Target, lowered: Collection[str]) -> Target:
    """Return a target with the coarsest precision of its lowered dots, unless it states how it rounds."""
    if target.states_precision:
        return target
    coarsest = next((each for each in COARSEST_FIRST if each in lowered), target.input_precision)
    return target if coarsest == target.input_precision else replace(target, input_precision=coarsest)


def precision_in_words(target: Target) -> str:
    """Return what was read, and how to overrule it."""
    return (
        f"Its dots of float32 have input_precision = {target.input_precision!r}, as Triton lowered them, so the bounds "
        f"allow it; rounding.input_precision = 'ieee' in a binding forbids it."
    )
