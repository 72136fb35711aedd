"""The fixed tolerances judge the rows that a target answers, and no others."""

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.mutation.fixed_tolerances import RULES, yardsticks
from fuzz_attn.oracle.reference import attend

MIXED = AttentionCase((Sequence(2, 3), Sequence(1, 5)), family="paged", filter_by_query_len=True)
NOBODY = AttentionCase((Sequence(2, 3), Sequence(0, 5)), family="paged", filter_by_query_len=True)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", [MIXED, NOBODY], ids=["some", "none"])
def test_rows_left_alone_do_not_count(case: AttentionCase, rule: str) -> None:
    tensors = materialise(case)
    reference = attend(tensors)
    answered = tensors.answered_tokens
    assert answered is not None
    yardstick = yardsticks(tensors, reference)[rule]
    assert yardstick.accepts(tensors.output) == (case is NOBODY)
    tensors.output[: case.num_tokens][answered] = reference.expected[answered].float()
    assert yardstick.accepts(tensors.output)
    tensors.output[: case.num_tokens][answered] += 1.0
    assert yardstick.accepts(tensors.output) == (case is NOBODY)
    assert bool(tensors.output[: case.num_tokens][~answered].isnan().all())
