"""Memory of no row that is written, and a store behind the output: one bug, whichever of them a run meets first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.engine.events import FailureFound
from fuzz_attn.oracle.verdict import OUT_OF_BOUNDS_STORE, Verdict
from fuzz_attn.simulator.access_checks import FindingKind
from tests.engine.failures.test_failures import FakeWorker, Run

PADDED = Verdict("nothing_else_written", "written_outside", "64 bytes of the output's memory that belong to no row")
STORE = Verdict(
    "sanitizers", "out_of_bounds", "out-of-bounds store in kernel at /kernel.py:9: ...", site="/kernel.py:9"
)


def stores_behind(case: AttentionCase) -> Verdict | None:
    """Return what a kernel shows that writes one row too many in cases with sinks."""
    if case.sinks is None:
        return None
    return PADDED if case.padded_tokens or case.form.extra_output_rows else STORE


def stores_into_padding(case: AttentionCase) -> Verdict | None:
    """Return what a kernel shows that fills the rows that only pad the output."""
    return PADDED if case.padded_tokens else None


def test_a_store_is_told_by_the_words_that_the_simulator_uses() -> None:
    assert FindingKind.OUT_OF_BOUNDS_STORE.value == OUT_OF_BOUNDS_STORE
    assert not FindingKind.OUT_OF_BOUNDS_LOAD.value.startswith(OUT_OF_BOUNDS_STORE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_behind_the_output_is_the_store_that_does_it(seed: int, tmp_path: Path) -> None:
    run = Run(tmp_path, FakeWorker(stores_behind), cases=200, seed=seed)
    found = {event.counterexample.verdict.kind for event in run.events if isinstance(event, FailureFound)}
    (failure,) = run.failures
    assert failure.verdict == STORE
    assert (failure.trigger, failure.shrunk, failure.confirmation) == (("sinks",), True, "confirmed")
    assert "written_outside" in found, "it is met in a padded output too"


def test_padding_that_is_written_and_nothing_behind_it_stays_what_it_is(tmp_path: Path) -> None:
    (failure,) = Run(tmp_path, FakeWorker(stores_into_padding), cases=200).failures
    assert failure.verdict == PADDED
    assert failure.trigger == ("padded rows of q and out",)
