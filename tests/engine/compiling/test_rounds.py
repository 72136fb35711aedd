"""Each round is begun by one shard; one that finds no new round plays any that is ready, and none that is not."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from random import Random

import pytest

from fuzz_attn.engine.rounds import CLAIM_SECONDS, FRUITLESS, ReadyRound, Rounds


def always() -> bool:
    return True


def never() -> bool:
    return False


def ready(number: int, cases: int = 32) -> ReadyRound:
    return ReadyRound(number, complete=number != 2, usual=number == 1, cases=cases)


@pytest.fixture
def stage(tmp_path: Path) -> Rounds:
    rounds = Rounds(tmp_path)
    rounds.make()
    return rounds


def test_each_round_is_begun_by_one_shard_the_first_one_first(stage: Rounds, tmp_path: Path) -> None:
    shards, random = [Rounds(tmp_path) for _ in range(3)], Random(1)
    for number in (4, 1, 0, 3, 2, 5):
        stage.set_ready(ready(number))
    assert stage.waiting() == 6
    begun = [shards[place % 3].next(random, never) for place in range(6)]
    assert begun == [ready(number) for number in range(6)]
    assert stage.waiting() == 0
    assert [shard.played for shard in shards] == [2, 2, 2]


def test_all_rounds_are_played_again_while_no_new_one_is_ready(stage: Rounds, tmp_path: Path) -> None:
    shard, random = Rounds(tmp_path), Random(1)
    for number in range(6):
        stage.set_ready(ready(number))
    assert {shard.next(random, never) for _ in range(6)} == {ready(number) for number in range(6)}
    assert {shard.next(random, never) for _ in range(60)} == {ready(number) for number in range(6)}
    stage.set_ready(ready(6))
    assert shard.next(random, never) == ready(6), "a new one comes first"


def test_a_round_whose_cases_are_all_refused_is_not_played(stage: Rounds, tmp_path: Path) -> None:
    shard, random = Rounds(tmp_path), Random(1)
    stage.set_ready(ready(0, cases=0))
    stage.set_ready(ready(1, cases=1))
    assert stage.waiting() == 1
    assert shard.next(random, never) == ready(1, cases=1), "one case is looked at"
    assert shard.next(random, never) is None, "and not a second time"
    stage.set_ready(ready(2))
    assert {shard.next(random, never) for _ in range(20)} == {ready(2)}


def test_what_a_place_refuses_is_reduced_by_one_process_at_a_time(stage: Rounds, tmp_path: Path) -> None:
    site, other, shard = (
        ("host", "ValueError", "launcher.py:7"),
        ("host", "ValueError", "launcher.py:8"),
        Rounds(tmp_path),
    )
    assert stage.claim(site)
    assert not shard.claim(site)
    assert shard.claim(other)
    stage.release(site)
    assert shard.claim(site)
    long_ago = time.time() - CLAIM_SECONDS - 1.0
    for claim in tmp_path.glob("claimed-*"):
        os.utime(claim, (long_ago, long_ago))
    assert stage.claim(site), "the other process may have died"
    stage.release(("host", "ValueError", "launcher.py:9"))  # which nobody has claimed


def test_where_all_rounds_are_refused_there_is_none(stage: Rounds, tmp_path: Path) -> None:
    for number in range(FRUITLESS - 1):
        stage.set_ready(ready(number, cases=0))
    asked: list[bool] = []

    def once() -> bool:
        asked.append(True)
        return len(asked) == 1

    assert Rounds(tmp_path).next(Random(1), once) is None
    assert len(asked) == 2, "another round may be accepted"
    stage.set_ready(ready(FRUITLESS, cases=0))
    assert Rounds(tmp_path).next(Random(1), always) is None


def test_a_shard_waits_for_the_first_round(stage: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def go_on() -> bool:
        asked.append(True)
        if len(asked) == sys.getrecursionlimit():
            stage.set_ready(ready(0))
        return True

    asked: list[bool] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert Rounds(tmp_path).next(Random(1), go_on) == ready(0)


def test_there_is_no_round_when_the_time_is_up_or_the_stage_has_ended(stage: Rounds, tmp_path: Path) -> None:
    shard = Rounds(tmp_path)
    assert shard.next(Random(1), never) is None
    stage.set_ended()
    assert shard.next(Random(1), always) is None


def test_rounds_can_be_taken_back(stage: Rounds, tmp_path: Path) -> None:
    stage.set_ready(ready(0))
    stage.clear()
    assert stage.waiting() == 0
    assert Rounds(tmp_path).next(Random(1), never) is None


def test_the_compile_stage_sees_who_follows_a_failure(stage: Rounds, tmp_path: Path) -> None:
    one, two = Rounds(tmp_path), Rounds(tmp_path)
    with one.following(0):
        assert stage.followers() == 1
        with two.following(1):
            assert stage.followers() == 2
        assert stage.followers() == 1
    assert stage.followers() == 0
