"""The watchdog says what a run waits for, once for each stop, and ends a run that does not end by itself."""

from __future__ import annotations

import math
import time

import pytest

from fuzz_attn.engine.fuzz_run import LATE_SECONDS, STILL_SECONDS, Watchdog, say_on_standard_error


class StillRun:
    """A run that waits for worker 1, with limits that a test sets."""

    def __init__(self) -> None:
        self.ends, self.must_end = math.inf, math.inf
        self.struck = self.alive = 0

    def waits_for(self) -> str:
        return "worker 1"

    def limit(self) -> float:
        return self.ends

    def last_moment(self) -> float:
        return self.must_end

    def strike(self) -> None:
        self.struck += 1

    def show_alive(self) -> None:
        self.alive += 1


def test_a_run_that_stands_still_says_so_once(said: list[str]) -> None:
    dog, now = Watchdog(StillRun(), said.append), time.monotonic()
    dog.look(now + 1)
    assert said == []
    dog.look(now + STILL_SECONDS + 5)
    dog.look(now + STILL_SECONDS + 6)
    assert said == ["no progress for 25 s: waiting for worker 1"]
    dog.beat()
    dog.look(time.monotonic() + STILL_SECONDS + 5)
    assert len(said) == 2


@pytest.fixture
def said() -> list[str]:
    return []


def test_a_run_beyond_its_limit_says_so_and_then_is_ended(said: list[str]) -> None:
    run = StillRun()
    dog, now = Watchdog(run, said.append), time.monotonic()
    run.ends, run.must_end = now + 1.0, now + 18.0
    dog.look(now + 1.0 + LATE_SECONDS + 2.0)
    assert said == ["the run goes on 12 s after its limit: waiting for worker 1"]
    assert run.struck == 0
    for _ in range(2):
        dog.look(now + 18.5)
    assert said[1:] == ["all workers were killed: the run did not end by itself, and waited for worker 1"]
    assert run.struck == 1


def test_a_run_shows_every_minute_that_it_goes_on(said: list[str]) -> None:
    run = StillRun()
    dog, now = Watchdog(run, said.append), 1e6
    for second in range(130):
        dog.beat()
        dog.look(now + second)
    assert run.alive == 3


def test_what_it_says_is_one_line_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    say_on_standard_error("one\nline")
    assert capfd.readouterr() == ("", "fuzz-attn: one line\n")
