"""Forks do pieces of work; one that dies loses only its own piece."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from fuzz_attn.workers import fork
from fuzz_attn.workers.fork import Forks

A_MINUTE = 60.0
MOST_ASIDE = 2


def results(works: list[Callable[[], bytes]]) -> dict[int, bytes]:
    """Return the results of pieces of work that forks do at the same time."""
    forks, done = Forks(MOST_ASIDE), dict[int, bytes]()
    for number, work in enumerate(works):
        forks.start(number, work)
    assert forks.at_work == len(works)
    while len(done) < len(works):
        done.update(forks.ended(A_MINUTE))
    return done


def rejected() -> bytes:
    raise ValueError("the compiler rejects it")


def test_each_piece_is_done_in_a_process_of_its_own() -> None:
    done = results([lambda: str(os.getpid()).encode()] * 3)
    assert len({*done.values(), str(os.getpid()).encode()}) == 4


def test_a_result_may_be_longer_than_a_pipe() -> None:
    long = bytes(300_000)
    assert results([lambda: long, lambda: b"short"]) == {0: long, 1: b"short"}


def test_a_fork_that_dies_or_raises_has_no_result(capfd: pytest.CaptureFixture[str]) -> None:
    assert results([rejected, lambda: b"done", lambda: os._exit(3)]) == {0: b"", 1: b"done", 2: b""}
    assert "the compiler rejects it" in capfd.readouterr().err


def test_a_fork_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "STUCK_SECONDS", 0.0)
    forever, forks = os.pipe(), Forks(MOST_ASIDE)
    forks.start(7, lambda: os.read(forever[0], 1))
    ended: list[tuple[int, bytes]] = []
    while not ended:
        ended += forks.ended(0.1)
    assert (ended, forks.at_work) == ([(7, b"")], 0)
    os.close(forever[0])
    os.close(forever[1])


def test_slow_forks_are_set_aside_with_the_compilers_that_they_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "SLOW_SECONDS", 0.0)
    forever, told, forks = os.pipe(), os.pipe(), Forks(MOST_ASIDE)

    def work() -> bytes:
        compiler = subprocess.Popen([sys.executable, "-c", "input()"], stdin=forever[0])
        os.write(told[1], f"{os.getpid()} {compiler.pid}\n".encode())
        return str(compiler.wait()).encode()

    for number in range(MOST_ASIDE + 1):
        forks.start(number, work)
    with os.fdopen(told[0]) as lines:
        processes = [tuple(map(int, lines.readline().split())) for _ in range(MOST_ASIDE + 1)]
    assert list(forks.ended(0.0)) == []
    assert forks.at_work == 1, "no more than so many at a time"
    priorities = [{os.getpriority(os.PRIO_PROCESS, each) for each in both} for both in processes]
    assert sorted(map(tuple, priorities)) == [(os.getpriority(os.PRIO_PROCESS, 0),), *[(fork.SLOW_NICE,)] * MOST_ASIDE]
    forks.kill()
    for descriptor in (*forever, told[1]):
        os.close(descriptor)


def test_a_fork_that_others_wait_for_is_not_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "SLOW_SECONDS", 0.0)
    forever, forks = os.pipe(), Forks(MOST_ASIDE)
    for number in (-1, 1):
        forks.start(number, lambda: os.read(forever[0], 1), awaited=number < 0)
    assert list(forks.ended(0.0)) == []
    assert forks.at_work == 1
    forks.kill()
    os.close(forever[0])
    os.close(forever[1])


def test_all_forks_can_be_ended() -> None:
    forever, forks = os.pipe(), Forks(MOST_ASIDE)
    for number in range(3):
        forks.start(number, lambda: os.read(forever[0], 1))
    forks.kill()
    assert forks.at_work == 0
    assert list(forks.ended(0.0)) == []
    os.close(forever[0])
    os.close(forever[1])
