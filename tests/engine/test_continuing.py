"""A run goes on where earlier ones ended, and ends when nothing is new."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz_attn.backends.kernel_coverage import Mask, Outcome
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.counterexamples import signed
from fuzz_attn.engine.events import CaseJudged, Event, FailureChanged, FailureFound, Note, WorkerReady
from fuzz_attn.engine.listeners.statistics import Novelty
from fuzz_attn.engine.orders import Order, Ready
from fuzz_attn.engine.run_folder import covered_keys
from fuzz_attn.engine.schedule import ON_CPU, play_round
from fuzz_attn.operations.attention.drawing import FREED, SERVED, keys_of_round, uncovered
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.strategies.compile_keys import key_pool

SMALL = Domain()


def test_uncovered_keys_are_drawn_first() -> None:
    pool = key_pool(SMALL)
    first = keys_of_round(SMALL, 1, 40)
    assert keys_of_round(SMALL, 1, 40, covered=()) == first
    covered = {key.number for key in first}
    own = set(first) & set(pool)
    assert len(first) - len(own) == (40 - 40 // SERVED) // FREED, "those have sizes that stand in no table"
    second = keys_of_round(SMALL, 1, 40, covered=covered)
    assert {key.number for key in second} & covered == {pool[0].number}, "a round always has the simplest key"
    assert uncovered(SMALL, covered) == (len(pool) - len(own), len(pool))


def test_covered_keys_fill_up_a_round() -> None:
    pool = key_pool(SMALL)
    left = {key.number for key in pool[-3:]}
    covered = {key.number for key in pool} - left
    drawn = {key.number for key in keys_of_round(SMALL, 5, 40, covered=covered)}
    assert left <= drawn
    assert len(drawn) >= 40


def test_the_keys_of_cases_have_the_numbers_of_the_pool() -> None:
    """Else the keys that a run counts would never match those that the next run draws."""
    numbers = {key.number for key in key_pool(SMALL)}
    drawn: list[int] = []
    play_round(SMALL, 3, 60, lambda case, relation: drawn.append(case.compile_key.number), ON_CPU)
    assert sum(number in numbers for number in drawn) >= 0.7 * len(drawn), "a sixth of the keys have other sizes"


def test_the_keys_of_earlier_runs_are_found(tmp_path: Path) -> None:
    for name, text in {
        "one": '{"target": "t", "compile_keys": {"7": 2, "8": 1}}',
        "two/t": '{"target": "t", "compile_keys": {"9": 2}, "more": []}',
        "three": '{"target": "other", "compile_keys": {"10": 2}}',
        "four": '{"target": "t", "compile_keys": {"11',
    }.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "summary.json").write_text(text)
    assert covered_keys(tmp_path, "t") == {7, 8, 9}
    assert covered_keys(tmp_path / "missing", "t") == frozenset()


def mask(*seen: Outcome) -> Mask:
    return Mask("f.py", 1, "kernel", "load", 0, "m", True, seen)


def judged(case: AttentionCase, *masks: Mask) -> Event:
    return CaseJudged(0, "search", Order(case), (Verdict("oracle"),), 0.1, masks)


def test_only_new_keys_failures_and_outcomes_count(case: AttentionCase) -> None:
    found = signed("t", "unified", None, case, Verdict("oracle", "nan", "wrong"))
    other = signed("t", "unified", None, case, Verdict("oracle", "inf", "wrong"))
    events: list[tuple[Event, bool]] = [
        (Note(0, "before the worker is ready"), False),
        (WorkerReady(0, Ready("t", "t", "unified", "simulator")), True),
        (WorkerReady(1, Ready("t", "t", "unified", "simulator")), False),
        (judged(case), True),
        (judged(case), False),
        (judged(replace(case, softcap=8.0)), True),
        (judged(case, mask("mixed")), True),
        (judged(case, mask("mixed")), False),
        (judged(case, mask("mixed", "all true")), True),
        (FailureFound(0, 0, found, "a.json"), True),
        (FailureFound(1, 0, found, "b.json"), False),
        (FailureChanged(0, 0, other, "c.json"), True),
        (FailureChanged(0, 0, other, "c.json", done=True), False),
    ]
    now = 0.0
    novelty = Novelty(lambda: now)
    assert novelty.seconds_without() == 0.0
    for event, is_new in events:
        now += 10.0
        before = novelty.seconds_without()
        novelty(event)
        assert novelty.seconds_without() == (0.0 if is_new else before), event


@pytest.mark.parametrize("outcome", ["all true", "all false"])
def test_an_outcome_is_new_once(case: AttentionCase, outcome: Outcome) -> None:
    now = 1.0
    novelty = Novelty(lambda: now)
    novelty(judged(case, mask(outcome)))
    now = 5.0
    novelty(judged(case, mask(outcome)))
    assert novelty.seconds_without() == 4.0
