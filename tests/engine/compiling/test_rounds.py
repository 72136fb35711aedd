"""Shards play the newest round whose kernels are compiled, and never one that is not."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random

import pytest

from fuzz_attn.engine.compiling.rounds import LAST_ROUNDS, ReadyRound, Rounds


def always() -> bool:
    return True


@pytest.fixture
def stage(tmp_path: Path) -> Rounds:
    rounds = Rounds(tmp_path)
    rounds.make()
    return rounds


def test_each_round_is_played_when_it_is_ready_and_then_in_turn(stage: Rounds, tmp_path: Path) -> None:
    shard, random = Rounds(tmp_path), Random(1)
    for number in range(6):
        stage.set_ready(number, complete=number != 2)
        assert shard.next(random, always) == ReadyRound(number, complete=number != 2)
        assert stage.begun(number)
        assert shard.ready == number + 1
    again = {shard.next(random, always) for _ in range(60)}
    assert again == {ReadyRound(number, complete=number != 2) for number in range(6 - LAST_ROUNDS, 6)}


def test_rounds_that_a_slow_shard_skips_are_begun_too(stage: Rounds, tmp_path: Path) -> None:
    for number in range(3):
        stage.set_ready(number, complete=True)
    assert Rounds(tmp_path).next(Random(1), always) == ReadyRound(2, complete=True)
    assert all(stage.begun(number) for number in range(3))


def test_a_shard_waits_for_the_first_round(stage: Rounds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def go_on() -> bool:
        asked.append(True)
        if len(asked) == sys.getrecursionlimit():
            stage.set_ready(0, complete=True)
        return True

    asked: list[bool] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert Rounds(tmp_path).next(Random(1), go_on) == ReadyRound(0, complete=True)


def test_there_is_no_round_when_the_time_is_up_or_the_stage_has_ended(stage: Rounds, tmp_path: Path) -> None:
    shard = Rounds(tmp_path)
    assert shard.next(Random(1), lambda: False) is None
    stage.set_ended()
    assert shard.next(Random(1), always) is None
