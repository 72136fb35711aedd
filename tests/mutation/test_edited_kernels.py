"""Seeded bugs in a whole campaign: found, shrunk, saved and replayed. The audit tests whether all are found."""

from collections.abc import Callable, Iterator

import pytest

from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.engine.replay import replay

MAX_CASES = 480

SEEDS = {"store_beyond_head": 0, "page_offset_in_32_bits": 6}
"""Bugs that only kernels have: a store too far and an address that overflows, each with a seed that soon shows it.

Campaigns on targets in torch have others: a wrong key, a dead slot, a row without an answer. Audits find a sample of
all seeded bugs.
"""


@pytest.fixture(scope="module")
def healthy() -> Iterator[IsolatedWorker]:
    """Return a worker on our own kernels."""
    with IsolatedWorker(Setup("unified")) as worker:
        yield worker


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SEEDS)
def test_is_found_shrunk_saved_and_replayed(
    name: str, file_with_bug: Callable[[str, str], str], campaign: Callable[..., Results], healthy: IsolatedWorker
) -> None:
    spec = file_with_bug(name, "unified")
    outcome = campaign("", setup=Setup(spec), seed=SEEDS[name], max_cases=MAX_CASES, until_failure=True)
    assert outcome.failure is not None, f"not found in {outcome.statistics.cases} cases"
    assert outcome.path is not None
    case = outcome.failure.case
    assert len(case.sequences) <= 2
    assert case.total_keys <= 64
    assert [entry.status for entry in replay((outcome.path,))] == ["FAILED"]
    assert healthy.judge(Order(case, outcome.failure.relation)).verdict.passed
