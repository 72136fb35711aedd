"""How the error bound grows with the number of keys, in percent of the output.

Run it with ``make bench``, or with the numbers of keys. Each case is one query token with four heads of 64. Its
queries, keys and values are normal numbers, or its weights are equal and its values integers, so that sums are exact.
"""

from __future__ import annotations

import sys
from typing import Final

import torch

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypes, HeadLayout, Sequence
from fuzz_attn.case.recipes import IntegerValues, NormalScores, NormalValues, UniformScores
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.oracle.reference import attend
from fuzz_attn.oracle.rounding_model import RoundingModel

LENGTHS: Final = (128, 2_000, 4_096, 32_768)
TYPES: Final = {
    "float32": DTypes(),
    "float16": DTypes("float16", "float16", "float16"),
    "bfloat16": DTypes("bfloat16", "bfloat16", "bfloat16"),
}
MODEL: Final = RoundingModel(normalises_last=True)


def relative_bound(dtypes: DTypes, num_keys: int, exact: bool) -> float:
    """Return the root mean square of the bound, divided by that of the output, in percent."""
    case = AttentionCase(
        (Sequence(1, num_keys - 1),),
        heads=HeadLayout(1, 4, 64),
        dtypes=dtypes,
        softmax_scale=0.125,
        scores=UniformScores() if exact else NormalScores(),
        values=IntegerValues() if exact else NormalValues(),
    )
    reference = attend(materialise(case), MODEL)
    bound, expected = (each.square().mean().sqrt() for each in (reference["out"].bound, reference["out"].value))
    return float(100 * bound / expected)


def main(lengths: tuple[int, ...]) -> None:
    """Print the relative bounds of each type and length."""
    torch.set_num_threads(1)
    print("error bound in percent of the output, as root mean squares: normal numbers / equal weights and integers")
    print(f"{'keys':>7}  " + "  ".join(f"{name:>20}" for name in TYPES))
    for num_keys in lengths:
        pairs = ([relative_bound(dtypes, num_keys, exact) for exact in (False, True)] for dtypes in TYPES.values())
        print(f"{num_keys:7}  " + "  ".join(f"{normal:>9.3g} / {exact:>8.2g}" for normal, exact in pairs), flush=True)


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or LENGTHS)
