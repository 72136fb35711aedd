"""An order's clock counts what the launch itself takes, and ends every order some time."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from fuzz_attn.workers.worker_process import (
    COMPILE_SECONDS,
    COMPILES_SECONDS,
    FIRST_LOOK_SECONDS,
    MOST_WAITING,
    Delays,
    LaunchClock,
    delays_of,
)

LIMIT = 8.0


class Machine:
    """A machine with a clock, and a process on it that waits for a processor for part of its time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waited = 5.0

    def delays(self) -> Delays:
        return {1: self.waited, 2: 0.25}

    def run(self, clock: LaunchClock, *, waiting: float = 0.0, most: float = 1e6) -> str:
        """Let an order run until a limit is reached, and return which; empty if it is not within ``most`` seconds."""
        end = self.now + most
        while self.now < end:
            look = min(clock.next_look(), end)
            self.waited += waiting * (look - self.now)
            self.now = look
            if words := clock.over():
                return words
        return ""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def clock(machine: Machine) -> LaunchClock:
    return LaunchClock(LIMIT, machine.delays)


TOO_LONG = "the launch did not end within 8 s"


def test_a_launch_ends_at_its_limit(machine: Machine, clock: LaunchClock) -> None:
    assert machine.run(clock) == TOO_LONG
    assert machine.now == pytest.approx(100.0 + LIMIT)


def test_time_in_which_other_processes_run_does_not_count(machine: Machine, clock: LaunchClock) -> None:
    assert machine.run(clock, waiting=0.75) == TOO_LONG
    assert machine.now >= 100.0 + FIRST_LOOK_SECONDS + (LIMIT - FIRST_LOOK_SECONDS) / 0.25


def test_a_process_that_never_runs_is_not_waited_for_for_ever(machine: Machine, clock: LaunchClock) -> None:
    assert machine.run(clock, waiting=1.0) == TOO_LONG
    assert machine.now == pytest.approx(100.0 + MOST_WAITING * LIMIT, abs=LIMIT)


def test_a_system_that_is_silent_counts_all_time(machine: Machine) -> None:
    assert machine.run(LaunchClock(LIMIT, dict), waiting=1.0) == TOO_LONG
    assert machine.now == pytest.approx(100.0 + LIMIT)


def test_a_short_limit_needs_no_look(machine: Machine) -> None:
    def unasked() -> Delays:
        raise AssertionError

    assert machine.run(LaunchClock(FIRST_LOOK_SECONDS / 2, unasked)) != ""


def test_compiling_does_not_count_and_the_launch_goes_on_where_it_was(machine: Machine, clock: LaunchClock) -> None:
    assert machine.run(clock, most=5.0) == ""
    clock.compiling(ended=False)
    assert machine.run(clock, most=COMPILE_SECONDS - 1.0) == ""
    clock.compiling(ended=True)
    began = machine.now
    assert machine.run(clock) == TOO_LONG
    assert machine.now == pytest.approx(began + LIMIT - 5.0)


def test_a_kernel_that_compiles_for_ever_is_a_hang(machine: Machine, clock: LaunchClock) -> None:
    clock.compiling(ended=False)
    assert machine.run(clock) == "the launch still compiled a kernel after 120 s"
    assert machine.now == pytest.approx(100.0 + COMPILE_SECONDS)


def test_a_launch_that_compiles_one_kernel_after_the_other_is_a_hang(machine: Machine, clock: LaunchClock) -> None:
    """Each announced kernel gave it all of the time anew."""
    words = ""
    while not words:
        clock.compiling(ended=False)
        words = machine.run(clock, most=50.0)
        if not words:
            clock.compiling(ended=True)
            words = machine.run(clock, most=0.001)
    assert words == "the launch still compiled a kernel after 600 s"
    assert machine.now == pytest.approx(100.0 + COMPILES_SECONDS, abs=1.0)


def test_launches_between_kernels_add_up(machine: Machine, clock: LaunchClock) -> None:
    launched, words = 0.0, ""
    while not words:
        clock.compiling(ended=False)
        machine.run(clock, most=0.5)
        clock.compiling(ended=True)
        words, launched = machine.run(clock, most=3.0), launched + 3.0
    assert words == TOO_LONG
    assert launched == 9.0


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system does not tell who waits")
def test_the_delay_of_a_process_that_has_to_wait_is_read() -> None:
    """Two processes on one processor: each waits while the other runs."""
    spin = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        while not all(waited(process.pid) > 0.05 for process in both):
            assert all(process.poll() is None for process in both)
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert delays_of([both[0].pid]) == {}


def waited(process: int) -> float:
    return max(delays_of([process]).values(), default=0.0)
