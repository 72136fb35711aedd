"""A saved file covers its class of failure: what it shows when it is played, and the status of its replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.counterexamples import Counterexample, Step
from fuzz_attn.engine.events import Phase
from fuzz_attn.engine.failures.saved import Played, played
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.engine.replay import Replayed
from fuzz_attn.oracle.verdict import Verdict

CASE, EARLIER = AttentionCase((Sequence(1, 16),)), AttentionCase((Sequence(1, 8),))
WRONG = Verdict("oracle", "mismatch", "wrong", ratio=7.0)
NAN = Verdict("oracle", "nan", "NaN")
CRASH = Verdict("oracle", "crash", "died of SIGABRT")
OUTSIDE = Verdict("sanitizers", "out_of_bounds", "loads", site="/kernel.py:3")
UNWRITTEN = Verdict("oracle", "unwritten", "1 of 16 elements wrong")
PASSED = Answer(Verdict("oracle", ratio=0.5))


class Fake:
    """Launches whose answers a function returns, of an order and the number of the launch."""

    def __init__(self, answer: Callable[[Order, int], Answer]) -> None:
        self.answer = answer
        self.launches = 0

    def judge(self, order: Order, phase: Phase) -> Answer:
        self.launches += 1
        return self.answer(order, self.launches)

    def renew(self) -> None:
        self.launches = 0


def file(**fields: object) -> Counterexample:
    found = counterexamples.signed("t", "unified", None, CASE, WRONG)
    return msgspec.structs.replace(found, **{"confirmation": "confirmed", **fields})


def play(found: Counterexample, answer: Callable[[Order, int], Answer]) -> Played:
    return played(found, Fake(answer), "confirm")


def others(result: Played) -> list[str]:
    return [failing.answer.verdict.kind for failing in result.others]


@pytest.mark.parametrize(
    ("answer", "also", "own", "rest"),
    [
        (PASSED, (), [], []),
        (Answer(WRONG), (), ["mismatch"], []),
        (Answer(NAN), (), ["nan"], []),
        (Answer(CRASH), (), [], ["crash"]),
        (Answer(OUTSIDE, (WRONG,)), (), ["mismatch"], ["out_of_bounds"]),
        (Answer(UNWRITTEN, (WRONG,)), ("unwritten",), ["mismatch"], []),
        (Answer(UNWRITTEN), ("unwritten",), [], ["unwritten"]),
    ],
)
def test_a_file_covers_its_class_and_what_follows_from_it(
    answer: Answer, also: tuple[str, ...], own: list[str], rest: list[str]
) -> None:
    result = play(file(also=also), lambda order, number: answer)
    assert [verdict.kind for verdict in result.own] == own
    assert others(result) == rest
    assert result.passed == (not own and not rest)


def test_a_flaky_file_runs_until_it_fails_as_it_says() -> None:
    flaky = file(confirmation="flaky", failed=2, tries=6)
    result = play(
        flaky, lambda order, number: {2: Answer(CRASH), 3: Answer(CRASH), 5: Answer(WRONG)}.get(number, PASSED)
    )
    assert ([verdict.kind for verdict in result.own], others(result)) == (["mismatch"], ["crash"])
    assert not play(flaky, lambda order, number: Answer(WRONG) if number > 12 else PASSED).own


def test_a_case_before_the_failing_one_that_fails_is_not_forgotten() -> None:
    state = file(confirmation="state", sequence=(Step(EARLIER), Step(CASE)))
    result = play(state, lambda order, number: Answer(CRASH) if order.case == EARLIER else PASSED)
    assert others(result) == ["crash"]
    assert not result.passed
    after = play(state, lambda order, number: Answer(CRASH) if number == 3 else PASSED)
    assert [failing.before for failing in after.others] == [(Order(EARLIER), Order(CASE))]


def replayed(status: str, verdict: Verdict, *rest: Verdict) -> Replayed:
    found = msgspec.structs.replace(file(), reference="#1", because="waits", status=status)
    return Replayed(Path("a.json"), found, verdict, False, True, others=rest)


@pytest.mark.parametrize(
    ("status", "own", "with_other", "only_other"),
    [
        ("open", "FAILED", "FAILED", "FAILED"),
        ("known", "KNOWN", "CHANGED", "CHANGED"),
        ("fixed", "REGRESSED", "REGRESSED", "CHANGED"),
    ],
)
def test_a_mark_covers_no_other_failure_in_a_replay(status: str, own: str, with_other: str, only_other: str) -> None:
    results = replayed(status, WRONG), replayed(status, WRONG, CRASH), replayed(status, CRASH, CRASH)
    assert [result.status for result in results] == [own, with_other, only_other]
    assert [result.still_fails for result in results] == [own != "KNOWN", True, True]
    if only_other == "CHANGED":
        assert results[2].message == (
            "it fails in another way than the file says (oracle (mismatch)): oracle (crash): died of SIGABRT"
        )
