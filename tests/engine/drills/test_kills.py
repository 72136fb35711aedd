"""Fault drills: processes of a run are killed, and the run is interrupted, at several moments."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.drills.conftest import SECOND_SERVER, SERVER, SHARD, WORKER

Start = Callable[..., Any]

LONG = ("--max-time", "200")
INTERRUPTED = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def running(run: Any) -> bool:
    """Return whether cases are being judged."""
    return any(run.folder.rglob("journal-*.json"))


@pytest.mark.slow
def test_a_killed_worker_is_no_failure(start: Start) -> None:
    run = start("slow", "--max-cases", "60", *LONG)
    run.wait_until(lambda: running(run))
    run.kill(WORKER)
    run.end(0)
    assert run.files == []


LOST = "all workers are forks of was killed"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("process", "words"), [(SHARD, "SIGKILL"), (SERVER, LOST), (SECOND_SERVER, LOST)])
def test_a_killed_engine_ends_the_run_and_says_so(process: str, words: str, start: Start) -> None:
    run = start("slow", *LONG, own_server=True)
    run.wait_until(lambda: running(run))
    run.kill(process)
    run.end(2)
    assert words in run.output
    assert run.files == []


def test_a_killed_engine_leaves_the_failure_that_it_had_found(start: Start) -> None:
    run = start("slow_and_wrong", *LONG)
    run.wait_until(lambda: run.files)
    run.kill(SHARD)
    run.end(1, 2)
    assert "FAILED" in run.replay_here()


def test_a_killed_parent_leaves_no_process_and_the_failure(start: Start) -> None:
    run = start("slow_and_wrong", *LONG, own_server=True)
    run.wait_until(lambda: run.files)
    run.process.kill()
    run.process.wait()
    run.assert_nothing_left()
    assert "FAILED" in run.replay_here()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", INTERRUPTED)
def test_a_signal_ends_the_search(number: signal.Signals, start: Start) -> None:
    run = start("slow", *LONG)
    run.wait_until(lambda: running(run))
    run.process.send_signal(number)
    run.end(INTERRUPTED[number])
    assert "Summary of" in run.output


def test_a_signal_while_shrinking_keeps_the_failure(start: Start) -> None:
    run = start("slow_and_wrong", *LONG)
    run.wait_until(lambda: run.files)
    run.process.send_signal(signal.SIGTERM)
    run.end(1)
    assert "FAILED" in run.replay_here()


@pytest.mark.slow
def test_an_interrupt_while_the_workers_start(start: Start) -> None:
    run = start("slow", *LONG, own_server=True)
    run.wait_until(lambda: run.having(WORKER))
    run.process.send_signal(signal.SIGINT)
    run.end(130)


@pytest.mark.slow
def test_an_interrupt_of_the_whole_group(start: Start) -> None:
    """A terminal sends it to every process of the group in the foreground."""
    run = start("slow", *LONG, own_server=True)
    run.wait_until(lambda: running(run))
    os.killpg(run.process.pid, signal.SIGINT)
    run.end(130)


def test_impatient_interrupts(start: Start) -> None:
    run = start("slow", *LONG)
    run.wait_until(lambda: running(run))
    for _ in range(3):
        run.process.send_signal(signal.SIGINT)
    run.end(130, -signal.SIGINT)  # the third one ends it without a word
