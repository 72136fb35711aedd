"""What a run counts: nothing is left out when shards are united, when a log is read, and when two failures are one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.events import (
    CaseJudged,
    CaseRefused,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Finished,
    WorkerReady,
)
from fuzz_attn.engine.listeners.event_log import LOG_NAME, EventLog, report_of
from fuzz_attn.engine.listeners.results import Results, one_for_each_bug
from fuzz_attn.engine.listeners.statistics import Statistics, merged
from fuzz_attn.engine.orders import Order, Ready
from fuzz_attn.oracle.verdict import Kind, Refusal, Verdict

CASE = AttentionCase((Sequence(1, 3),))
PASSED, WRONG = Verdict("oracle", ratio=0.5), Verdict("oracle", "mismatch", "wrong", ratio=7.0)
LARGEST = frozenset(("seconds", "unfinished_seconds"))
"""Counts of which the largest is the union's; the others add up."""
NOT_UNITED = frozenset(("seed", "shrinking_now", "outcomes"))
"""Numbers that are the same for all shards, that are 0 at the end, or that follow from others."""


def found_with(kind: Kind = "mismatch", **changes: Any) -> Counterexample:
    found = counterexamples.signed("t", "unified", None, CASE, Verdict("oracle", kind, "wrong"))
    return msgspec.structs.replace(found, **({"confirmation": "confirmed", "shrunk": True} | changes))


def numbers() -> list[str]:
    """Return the names of all counts of a shard."""
    counts = vars_of(Statistics("t"))
    return [name for name, value in counts.items() if type(value) in (int, float) and name not in NOT_UNITED]


def vars_of(statistics: Statistics) -> dict[str, Any]:
    return msgspec.structs.asdict(statistics)


@pytest.mark.parametrize("name", numbers())
def test_the_union_of_two_shards_has_each_count_of_both(name: str) -> None:
    kind = type(getattr(Statistics("t"), name))
    one, other = (msgspec.structs.replace(Statistics("t"), **{name: kind(value)}) for value in (3, 5))
    union = merged([one, other])
    assert union is not None
    assert getattr(union, name) == (5 if name in LARGEST else 8)


@pytest.mark.parametrize("name", ["compile_keys", "features", "relations", "unsupported"])
def test_the_union_of_two_shards_has_each_line_of_both(name: str) -> None:
    one, other = (msgspec.structs.replace(Statistics("t"), **{name: lines}) for lines in ({1: 2, 2: 1}, {2: 4, 3: 1}))
    union = merged([one, other])
    assert union is not None
    assert getattr(union, name) == {1: 2, 2: 5, 3: 1}


def test_a_log_has_each_failing_case_and_none_that_passed(tmp_path: Path) -> None:
    with EventLog(tmp_path / LOG_NAME) as log:
        for verdicts in ((PASSED,), (WRONG,), (WRONG, PASSED), (PASSED, PASSED)):
            log(CaseJudged(0, "search", Order(CASE), verdicts, 0.1))
        log(Finished(-1, 1.0))
    assert (tmp_path / LOG_NAME).read_text().count('"case_judged"') == 2
    assert report_of(tmp_path / LOG_NAME).cases == 4


def test_cases_that_confirm_or_shrink_are_no_cases_of_the_search() -> None:
    results = Results()
    for phase in ("saved", "search", "confirm", "shrink"):
        results(CaseJudged(0, phase, Order(CASE), (PASSED,), 0.1))
        results(CaseRefused(0, phase, Order(CASE), Refusal("host", "ValueError", "no")))
    statistics = results.statistics
    assert (statistics.cases, statistics.shrinking, statistics.refused) == (2, 2, 2)


def test_a_shard_that_has_ended_shrinks_nothing() -> None:
    results = Results()
    results(WorkerReady(0, Ready("t", "t", "unified", "simulator")))
    results(FailureFound(0, 0, found_with(), "a.json"))
    assert results.statistics.shrinking_now == 1
    results(Finished(1, 1.0))
    assert results.statistics.shrinking_now == 1
    results(Finished(0, 1.0))
    assert results.statistics.shrinking_now == 0


def test_a_failure_keeps_its_cases_whatever_its_file_is_called() -> None:
    results = Results()
    results(FailureFound(0, 0, found_with(), "a.json"))
    results(FailureChanged(0, 0, found_with(), "b.json", done=True))
    for path in ("a.json", "b.json", "c.json"):
        results(FailureSeenAgain(0, path))
    (failure,) = results.failures
    assert failure.cases == 3


def test_of_two_files_of_one_bug_that_from_before_the_run_stays(tmp_path: Path) -> None:
    old, new = counterexamples.save(found_with(), tmp_path), counterexamples.save(found_with(), tmp_path)
    results = Results()
    results(CaseJudged(0, "search", Order(CASE), (WRONG,), 0.1))
    results(FailureFound(0, 0, found_with(trigger=("a context", "sinks")), str(old), saved=True))
    results(FailureFound(1, 0, found_with(trigger=("a context",)), str(new)))
    older = counterexamples.save(found_with(), tmp_path)
    results(FailureFound(0, 1, found_with(trigger=("a context",)), str(older), saved=True))
    left = one_for_each_bug(results.report())
    assert old.exists()
    assert older.exists()
    assert [row.path for row in left.failures] == [str(old), str(older)]
    assert not new.exists()


@pytest.mark.parametrize(
    ("kind", "confirmation", "fails"),
    [
        ("timeout", "unconfirmed", False),
        ("timeout", "confirmed", True),
        ("mismatch", "unconfirmed", True),
        ("mismatch", "flaky", True),
    ],
)
def test_only_a_launch_that_was_slow_once_does_not_fail_the_run(kind: Kind, confirmation: str, fails: bool) -> None:
    results = Results()
    results(CaseJudged(0, "search", Order(CASE), (PASSED,), 0.1))
    results(FailureFound(0, 0, found_with(kind, confirmation=confirmation), "a.json"))
    assert results.report().exit_status == int(fails)


def test_a_known_failure_does_not_fail_the_run_and_is_listed_apart() -> None:
    results = Results()
    results(CaseJudged(0, "saved", Order(CASE), (WRONG,), 0.1))
    known = found_with(status="known", reference="#7", because="waits")
    results(FailureFound(0, 0, known, "a.json", saved=True))
    report = results.report()
    assert (report.exit_status, report.statistics.known, report.statistics.counterexamples) == (0, ("a.json",), ())
