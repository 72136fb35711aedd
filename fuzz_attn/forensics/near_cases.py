"""Near cases: cases with the features of a failing one and other lengths, heads, numbers and sizes of scores."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.case.recipes import NormalScores
from fuzz_attn.errors import CaseError

LARGE_SCORES: Final = NormalScores(100.0)
"""The scores of some of the cases: a softmax that only small ones survive is wrong there."""


def near_cases(case: AttentionCase, first: int, last: int) -> Iterator[AttentionCase]:
    """Yield the near cases of some numbers; those that cannot exist are left out. The same each time."""
    for number in range(first, last):
        try:
            yield _near(case, number)
        except CaseError:
            continue


def _near(case: AttentionCase, number: int) -> AttentionCase:
    chance = random.Random(number)  # noqa: S311 - no secret
    mixed = number % 5 == 3  # sequences of every length, which other kernels may answer
    apart = FAMILIES[case.family].decodes_apart and not mixed
    sequences = []
    for _ in range(chance.choice((1, 2, 3))):
        one = chance.choice(case.sequences)
        query_len, context_len = one.query_len, one.context_len
        if mixed or query_len > 1 or not (apart or case.filter_by_query_len):
            query_len = chance.choice((query_len, 2 if apart else 1, 2, 3, 5, 7))
        longer = (context_len, context_len, context_len + chance.randrange(5), chance.randrange(20))
        sequences.append(Sequence(query_len, chance.choice((*longer, chance.randrange(70)))))
    return replace(
        case,
        sequences=tuple(sequences),
        window=case.window and chance.choice((case.window, chance.randrange(1, 24))),
        heads=HeadLayout(2, 2, case.heads.head_size) if number % 3 == 2 else case.heads,
        scores=LARGE_SCORES if number % 4 == 1 else NormalScores(),
        overrides=(),
        seed=number,
    )
