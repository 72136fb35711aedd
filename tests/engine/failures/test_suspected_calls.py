"""Sequences of calls that are suspected where a case fails in a used process only."""

from __future__ import annotations

import math

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import Sequence
from fuzz_attn.engine.events import Phase
from fuzz_attn.engine.failures.reduction import Share
from fuzz_attn.engine.failures.suspected_calls import as_sequence
from fuzz_attn.engine.failures.triage import class_of
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.operations.calls.call_case import calls_of
from fuzz_attn.oracle.verdict import Kind, Verdict

UNWRITTEN, NAN = (Verdict("oracle", kind, "wrong", ratio=3.0) for kind in ("unwritten", "nan"))


class Fresh:
    """Fresh processes, in which each sequence of calls fails."""

    def renew(self) -> None:
        """Do nothing: each answer is that of a fresh process."""

    def judge(self, order: Order, phase: Phase) -> Answer:
        """Return that a sequence has a NaN, and that a single case passes."""
        return Answer(NAN) if order.in_fresh_process else Answer()


@pytest.mark.parametrize(
    ("failed", "alone", "expected"),
    [(NAN, Answer(), "nan"), (UNWRITTEN, Answer(), "nan"), (UNWRITTEN, Answer(NAN), None), (NAN, Answer(NAN), "nan")],
)
def test_a_sequence_may_fail_in_another_way_but_not_as_the_case_does_alone(
    failed: Verdict, alone: Answer, expected: Kind | None
) -> None:
    order, share = Order(AttentionCase((Sequence(1, 3),))), Share(math.inf)
    shown = as_sequence(order, class_of(failed), alone, Fresh(), (), share, Domain(), keeps=False)
    assert (None if shown is None else shown[2].kind) == expected
    assert shown is None or shown[0].in_fresh_process


def test_no_call_is_suspected_that_the_target_does_not_promise() -> None:
    """A sequence with one query token less, and as many keys, has a context."""
    asked: list[Order] = []

    class Passing(Fresh):
        def judge(self, order: Order, phase: Phase) -> Answer:
            asked.append(order)
            return Answer()

    order = Order(AttentionCase((Sequence(3),), softmax_scale=0.25))
    contexts = []
    for no_context in (False, True):
        domain = Domain(no_context=no_context)
        share = Share(math.inf)
        assert as_sequence(order, class_of(NAN), Answer(), Passing(), (), share, domain, keeps=False) is None
        calls = [call.case for each in asked for call in calls_of(each.case)]
        contexts.append(any(sequence.context_len for case in calls for sequence in case.sequences))
        asked.clear()
    assert contexts == [True, False]


class Once(Fresh):
    """Processes of which one fails, and no other."""

    def __init__(self, failing: int) -> None:
        self._left = failing

    def judge(self, order: Order, phase: Phase) -> Answer:
        self._left -= 1
        return Answer() if self._left else Answer(NAN)


@pytest.mark.parametrize("failing", range(1, 5))
def test_a_sequence_that_fails_once_by_chance_shows_nothing(failing: int) -> None:
    order = Order(AttentionCase((Sequence(1, 3),)))
    assert as_sequence(order, class_of(NAN), Answer(), Once(failing), (), Share(math.inf), Domain(), keeps=True) is None


@pytest.mark.parametrize("keeps", [True, False])
def test_sequences_get_more_time_where_the_target_keeps_something(keeps: bool) -> None:
    order, spent = Order(AttentionCase((Sequence(1, 3),))), Share(-math.inf)
    shown = as_sequence(order, class_of(NAN), Answer(), Fresh(), (), spent, Domain(), keeps=keeps)
    assert (shown is not None) is keeps
