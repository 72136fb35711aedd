"""A failed relation whose second launch is wrong as a case of its own becomes that case."""

from __future__ import annotations

import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import Sequence
from fuzz_attn.engine.events import Phase
from fuzz_attn.engine.failures.reduction import restated
from fuzz_attn.engine.failures.triage import KnownFailure
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.oracle.verdict import Verdict

WRONG = Verdict("oracle", "mismatch", "wrong", ratio=7.0)


class Judge:
    """Judges cases of a kernel that is wrong, if at all, where a sequence without query tokens comes first."""

    def __init__(self, *, is_wrong: bool) -> None:
        self._is_wrong = is_wrong

    def judge(self, order: Order, phase: Phase) -> Answer:
        wrong = self._is_wrong and not order.case.sequences[0].query_len
        return Answer(WRONG if wrong else Verdict("oracle", ratio=0.5))

    def renew(self) -> None: ...


@pytest.mark.parametrize("property_name", ["oracle", "empty_sequences"])
@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_second_launch_that_is_wrong_alone_is_the_better_case(property_name: str, *, is_wrong: bool) -> None:
    case = AttentionCase((Sequence(3),))
    verdict = Verdict(property_name, "mismatch", "wrong", ratio=7.0)
    found = counterexamples.signed("fake", "unified", "empty_sequences", case, verdict)
    better = restated(KnownFailure(0, 0, found, ""), Judge(is_wrong=is_wrong), Domain())
    assert (better is not None) == (is_wrong and property_name == "empty_sequences")
    if better is not None:
        order, shown = better
        assert [sequence.query_len for sequence in order.case.sequences] == [0, 3, 0]
        assert (order.relation, shown) == (None, WRONG)
