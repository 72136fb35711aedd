"""Failures that wait for what other shards follow: they end as that, or are followed in the end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz_attn.engine.campaign import Campaign
from fuzz_attn.engine.events import CaseJudged, FailureChanged, FailureFound, Told
from fuzz_attn.engine.failures import other_shards
from fuzz_attn.engine.failures.reduction import share_seconds
from fuzz_attn.engine.failures.triage import KnownFailure
from fuzz_attn.engine.orders import Answer
from tests.engine.failures.test_failures import Bug, FakeWorker, Run, wrong


class Telling:
    """The news of a run in which another shard follows a failure, and ends it after some launches here, if at all."""

    def __init__(self, ending: FailureChanged, after: int | None) -> None:
        self.begun = FailureFound(5, ending.failure, ending.counterexample, "elsewhere.json", 0.5)
        self.ending = msgspec.structs.replace(ending, shard=5, path="elsewhere.json")
        self.waiting: list[Told] = [self.begun]
        self.after = after
        self.calls = 0

    def __call__(self) -> list[Told]:
        self.calls += 1
        told, self.waiting = self.waiting, []
        return [*told, self.ending] if self.calls == self.after else told


def told(ending: FailureChanged, after: int | None) -> dict[str, Any]:
    """Return what a run is told of another shard, and what its report has of that."""
    news = Telling(ending, after)
    return {"news": news, "others": [news.begun, news.ending]}


@pytest.fixture
def ended(tmp_path: Path) -> FailureChanged:
    """Return the end of a failure with sinks, as a shard tells it."""
    run = Run(tmp_path / "before", FakeWorker(wrong(lambda case: case.sinks is not None)), cases=100)
    return next(event for event in reversed(run.events) if isinstance(event, FailureChanged) and event.done)


def launches_to_shrink(run: Run) -> int:
    return sum(isinstance(event, CaseJudged) and event.phase == "shrink" for event in run.events)


def test_what_another_shard_follows_is_not_followed_here(tmp_path: Path, ended: FailureChanged) -> None:
    bug = wrong(lambda case: case.sinks is not None)
    run = Run(tmp_path, FakeWorker(bug), cases=100, **told(ended, after=12))
    assert any(isinstance(event, FailureFound) and event.shard == 0 for event in run.events), "it is saved at once"
    assert launches_to_shrink(run) == 0
    assert run.failures == [ended.counterexample]
    assert run.files == []


def test_another_bug_of_its_class_is_followed_after_that(tmp_path: Path, ended: FailureChanged) -> None:
    run = Run(tmp_path, FakeWorker(wrong(lambda case: case.window == 1)), cases=300, **told(ended, after=30))
    _, failure = run.failures
    assert failure.shrunk
    assert failure.confirmation == "confirmed"


@pytest.mark.parametrize("bug", [wrong(lambda case: case.sinks is not None), wrong(lambda case: case.softcap)])
def test_what_waits_is_followed_though_the_other_shard_never_tells(
    bug: Bug, tmp_path: Path, ended: FailureChanged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_shards, "PATIENCE", 0.2)
    run = Run(tmp_path, FakeWorker(bug), cases=100, **told(ended, after=None))
    _, failure = run.failures
    assert failure.shrunk
    assert failure.confirmation == "confirmed"


def test_the_last_seconds_of_a_run_are_not_waited_for(tmp_path: Path, ended: FailureChanged) -> None:
    """A failure that shows when the run is about to end is confirmed at once: a row that says little is of no use."""
    waits = other_shards.WaitingFailures(0)
    waits.note(FailureFound(5, 0, ended.counterexample, "elsewhere.json", 0.5))
    failure = KnownFailure(0, 0, ended.counterexample, "here.json")
    late = other_shards.Waiting(failure, Answer(ended.counterexample.verdict))
    share = share_seconds(100.0)
    assert not waits.takes(late, 100.0, share)
    assert not waits
    assert waits.takes(late, 100.0, 1.5 * share)
    assert waits
    assert list(waits.leaving()) == []


def test_what_waits_is_followed_after_a_search_that_ends_early(
    tmp_path: Path, ended: FailureChanged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near the end no more cases are judged, so that there is time for what waits."""
    monkeypatch.setattr(other_shards, "PATIENCE", 0.2)
    monkeypatch.setattr(Campaign, "_could_not_follow", lambda campaign: campaign._has_waiting())
    run = Run(tmp_path, FakeWorker(wrong(lambda case: case.softcap)), cases=100, **told(ended, after=None))
    _, failure = run.failures
    assert failure.shrunk
    assert failure.confirmation == "confirmed"


def test_how_long_other_shards_took_is_known_here(ended: FailureChanged, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    waits = other_shards.WaitingFailures(0)
    for number, (seconds, same_as) in enumerate([(7.0, ""), (9.0, "earlier.json"), (5.0, "")]):
        waits.note(FailureFound(5, number, ended.counterexample, "elsewhere.json", 0.5))
        now += seconds
        waits.note(msgspec.structs.replace(ended, shard=5, failure=number, same_as=same_as))
    assert waits.longest == 7.0
