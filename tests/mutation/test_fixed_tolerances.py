"""The fixed tolerances compare only the rows that a target answers."""

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.mutation.audit_results import RULES
from fuzz_attn.mutation.batch_runner import allowed_errors
from fuzz_attn.oracle.reference import attend

MIXED = AttentionCase((Sequence(2, 3), Sequence(1, 5)), family="paged", filter_by_query_len=True)
NONE = AttentionCase((Sequence(2, 3), Sequence(0, 5)), family="paged", filter_by_query_len=True)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", [MIXED, NONE], ids=["some", "none"])
def test_unanswered_rows_are_not_compared(case: AttentionCase, rule: str) -> None:
    tensors = materialise(case)
    reference = attend(tensors)
    live = tensors.outputs["out"].live
    assert live is not None
    answered = live.flatten()
    allowed = allowed_errors(tensors, reference)[rule]
    assert allowed.accepts(tensors) == (case is NONE)
    tensors.output[: case.num_tokens][answered] = reference["out"].value[answered].float()
    assert allowed.accepts(tensors)
    tensors.output[: case.num_tokens][answered] += 1.0
    assert allowed.accepts(tensors) == (case is NONE)
    assert bool(tensors.output[: case.num_tokens][~answered].isnan().all())
