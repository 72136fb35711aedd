"""Fault drills: whatever a target does to its process, its failure is found, saved and replayed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

import pytest

from fuzz_attn.errors import CounterexampleError
from fuzz_attn.operations.calls.call_case import CallSequence

Start = Callable[..., Any]

BUDGET = ("--max-cases", "8", "--max-time", "100")

HARM = {
    "segfaults": ("crash", "died of SIGSEGV"),
    "interrupts": ("exception", "the target raised KeyboardInterrupt"),
    "patches_torch": ("crash", "broke the harness, in a fresh process too: TypeError"),
}
"""Each target with the kind of its failure and the start of its message. Two runs at once have a wrong one.

`tests/engine/test_isolated_worker.py` has the verdicts on these and more: a corrupt heap, outputs of another size.
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", HARM)
def test_harm_is_found_saved_and_replayed(target: str, start: Start) -> None:
    run = start(target, *BUDGET, "--memory", "1G")
    run.end(1)
    kind, message = HARM[target]
    assert {found.verdict.kind for found in run.found} == {kind}
    assert all(found.verdict.message.startswith(message) for found in run.found)
    assert "FAILED" in run.replay("--memory", "1G")


@pytest.mark.slow
def test_exhausted_memory_is_found_saved_and_replayed(start: Start) -> None:
    run = start("exhausts_memory", "--max-time", "200", "--memory", "1G")
    run.wait_until(lambda: confirmed(run))
    run.process.send_signal(signal.SIGINT)  # each launch fills a gigabyte, so that shrinking takes minutes
    run.end(1)
    assert {(found.verdict.kind, found.verdict.message) for found in run.found} == {
        ("crash", "exceeded its memory limit of 1 GiB")
    }
    assert "FAILED" in run.replay("--memory", "1G")


def confirmed(run: Any) -> bool:
    """Return whether a saved failure is confirmed; files come and go while it is shrunk."""
    with contextlib.suppress(CounterexampleError):
        return any(found.confirmation == "confirmed" for found in run.found)
    return False


def test_a_target_that_always_hangs_is_found_in_a_short_run(start: Start) -> None:
    run = start("hangs_always", "--max-time", "20")
    run.end(0, 1)
    assert {found.verdict.kind for found in run.found} == {"timeout"}
    # A slow machine has no time for a second launch, and what did not fail twice fails no run.
    assert run.process.returncode == any(found.confirmation == "confirmed" for found in run.found)


def test_a_lower_recursion_limit_does_no_harm(start: Start) -> None:
    run = start("lowers_recursion_limit", *BUDGET)
    run.end(0)
    assert run.files == []


@pytest.mark.slow
def test_a_failure_that_needs_earlier_cases_says_so(start: Start) -> None:
    run = start("keeps_state", *BUDGET)
    run.end(1)
    (found,) = run.found
    assert found.confirmation == "state"
    assert found.sequence
    assert "FAILED" in run.replay()


@pytest.mark.slow
def test_deaths_that_need_earlier_cases_are_a_failure(start: Start) -> None:
    run = start("kills_itself_later", "--max-cases", "40")
    run.end(1)
    (found,) = run.found
    # It is found as a case with those before it, or as a sequence of calls, whichever comes first.
    assert found.verdict.kind == "crash"
    assert found.sequence or (found.confirmation == "confirmed" and isinstance(found.case, CallSequence))
    assert "FAILED" in run.replay()


@pytest.mark.slow
def test_a_failure_that_comes_and_goes_says_how_often(start: Start) -> None:
    run = start("fails_sometimes", "--max-cases", "60")
    run.end(1)
    for found in run.found:
        assert found.confirmation == "flaky"
        assert found.tries > found.failed
    assert run.files
