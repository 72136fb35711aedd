"""One cause that several checks see is one failure, and small errors of one rounding are called that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import Sequence
from fuzz_attn.engine.events import Phase
from fuzz_attn.engine.failures.confirmation import in_words
from fuzz_attn.engine.failures.reduction import shown_together
from fuzz_attn.engine.failures.triage import KnownFailure, KnownFailures
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.forensics.explanation import Explanation, Finding
from fuzz_attn.oracle.verdict import Verdict

ONE, TWO = AttentionCase((Sequence(1),)), AttentionCase((Sequence(2),))
WINDOW = replace(TWO, window=1)
LINE, OTHER = (Verdict("sanitizers", "out_of_bounds", "loads", site=f"/k.py:{line}") for line in (3, 9))
CAUSE = "out_of_bounds at /k.py:3"
OUTPUT = Verdict("oracle", "mismatch", "wrong", ratio=7.0, cause=CAUSE)
Shows = Callable[[AttentionCase], list[Verdict]]


class Lives:
    """Judges cases of a kernel, of which one failure is known."""

    def __init__(self, shows: Shows, known: KnownFailure) -> None:
        self.known: Any = KnownFailures()
        self.known.add(known)
        self._shows = shows

    def judge(self, order: Order, phase: Phase) -> Answer:
        verdicts = self._shows(order.case) or [Verdict("oracle", ratio=0.5)]
        return Answer(verdicts[0], tuple(verdicts[1:]))


def failure(case: AttentionCase, verdict: Verdict, *trigger: str) -> KnownFailure:
    found = counterexamples.signed("fake", "unified", None, case, verdict)
    return KnownFailure(0, 0, found, "", frozenset(trigger))


@pytest.mark.parametrize(
    ("shows", "new", "same"),
    [
        (lambda case: [LINE, OTHER], failure(WINDOW, OTHER, "window"), True),
        (lambda case: [LINE, OTHER] if case.window else [LINE], failure(WINDOW, OTHER, "window"), False),
        (lambda case: [OTHER] if case.window else [LINE, OTHER], failure(WINDOW, OTHER, "window"), False),
        (lambda case: [LINE, OUTPUT], failure(WINDOW, OUTPUT, "window"), False),
    ],
)
def test_findings_that_each_others_cases_show_are_one_failure(shows: Shows, new: KnownFailure, same: bool) -> None:
    known = failure(TWO, LINE, "at least 2 query tokens")
    lives: Any = Lives(shows, known)
    assert shown_together(new, lives) is (known if same else None)


@pytest.mark.parametrize(("always", "same"), [(True, True), (False, False)])
def test_a_wrong_output_that_follows_from_a_line_is_that_failure(always: bool, same: bool) -> None:
    """The line may also show where the output is right: then another mistake makes it wrong."""
    known = failure(TWO, msgspec.structs.replace(LINE, cause=CAUSE), "at least 2 query tokens")
    lives: Any = Lives(lambda case: [LINE, OUTPUT] if always or case.window else [LINE], known)
    assert shown_together(failure(WINDOW, OUTPUT, "window"), lives) is (known if same else None)


@pytest.mark.parametrize("ratio", [1.25, 7.0])
def test_small_errors_that_a_rounding_explains_are_called_that(ratio: float) -> None:
    verdict = Verdict("oracle", "mismatch", "wrong", ratio=ratio, rounding="rounding.scores = 'query'")
    told = in_words(lambda order: Answer(explanation=Explanation((Finding("scale", "wrong"),))), Order(ONE), verdict)
    words = "undeclared rounding? It passes with rounding.scores = 'query', and is 1.25 bounds off without"
    assert told.explanation == (words if ratio < 2 else "scale: wrong")
    assert told.cause.startswith("undeclared") is (ratio < 2)


def test_an_explanation_is_asked_about_the_line_of_the_failure() -> None:
    asked: list[Order] = []

    def judge(order: Order) -> Answer:
        asked.append(order)
        return Answer(explanation=Explanation((Finding("page", "wrong", cause=CAUSE),)))

    assert in_words(judge, Order(ONE), LINE).cause == CAUSE
    assert [(order.forensics, order.site) for order in asked] == [(True, "/k.py:3")]
