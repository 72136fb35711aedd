"""A short campaign on this project's own kernels of each family, those of all operations."""

from collections.abc import Callable, Iterable

import pytest

from fuzz_attn.backends.mask_coverage import Mask
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Setup
from fuzz_attn.operations.registry import FAMILIES
from fuzz_attn.report.mask_gaps import Explanation

CASES = {
    "unified": 100,
    "paged": 60,
    "context": 60,
    "chunked": 60,
    "extend": 60,
    "mla_decode": 60,
    "token_decode": 60,
    "varlen": 60,
    "merge_states": 60,
    "cache_write": 100,
}


@pytest.mark.parametrize("family", CASES)
def test_built_in_target_passes(
    family: str,
    campaign: Callable[..., Results],
    contradicted: Callable[[Iterable[Mask], str], list[Explanation]],
) -> None:
    results = campaign(family, setup=Setup(family), max_cases=CASES[family])
    assert CASES.keys() == FAMILIES.keys()
    assert results.failure is None, results.failure
    assert results.statistics.cases == CASES[family]
    assert contradicted(results.statistics.masks, family) == []
