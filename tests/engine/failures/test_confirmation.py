"""What a failure depends on that does not recur in a fresh process, with a made-up target."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.engine.events import Phase
from fuzz_attn.engine.failures import confirmation
from fuzz_attn.engine.failures.confirmation import LAST_CASES, TRIES, Dependent, dependent
from fuzz_attn.engine.failures.triage import class_of
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.oracle.verdict import Verdict

WRONG = Verdict("oracle", "mismatch", "wrong", ratio=7.0)
ORDERS = [Order(AttentionCase(sequences=(Sequence(1, keys),))) for keys in range(1, 31)]
FAILING = ORDERS[-1]


class Process:
    """A target that fails in the failing case when ``fails`` says so, of its launch's number and those before it."""

    def __init__(self, fails: Callable[[int, list[Order]], bool]) -> None:
        self.fails = fails
        self.launches = 0
        self.seen: list[Order] = []

    def judge(self, order: Order, phase: Phase) -> Answer:
        wrong = order == FAILING and self.fails(self.launches, self.seen)
        if order == FAILING:
            self.launches += 1
        self.seen.append(order)
        return Answer(WRONG if wrong else Verdict("oracle", ratio=0.5))

    def renew(self) -> None:
        self.seen.clear()


def found(fails: Callable[[int, list[Order]], bool]) -> Dependent:
    return dependent(FAILING, class_of(WRONG), Process(fails), ORDERS[:-1])


@pytest.mark.parametrize(("needed", "kept"), [(ORDERS[-3], LAST_CASES[0]), (ORDERS[0], len(ORDERS) - 1)])
def test_a_failure_that_needs_an_earlier_case_names_the_cases_before_it(needed: Order, kept: int) -> None:
    result = found(lambda _, seen: needed in seen)
    assert result == Dependent("state", sequence=tuple(ORDERS[:-1][-kept:]))


@pytest.mark.parametrize("launch", range(2 * confirmation.CHECKS))
def test_one_failure_by_chance_does_not_count_as_one_that_needs_earlier_cases(launch: int) -> None:
    result = found(lambda number, _: number == launch)
    assert result.confirmation == "flaky"
    assert result.failed < result.tries == TRIES + 2


def test_a_flaky_failure_counts_each_launch_that_failed() -> None:
    result = found(lambda number, _: number in (3, 5))
    assert result == Dependent("flaky", failed=3, tries=TRIES + 2)
