"""A short campaign on this project's own kernels of each family, those of all operations."""

from collections.abc import Callable, Iterable

import pytest

from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Setup
from fuzz_attn.operations.registry import FAMILIES
from fuzz_attn.report.mask_gaps import Explanation

CASES = {
    "unified": 30,
    "paged": 12,
    "context": 12,
    "chunked": 12,
    "extend": 12,
    "mla_decode": 12,
    "token_decode": 12,
    "varlen": 12,
    "merge_states": 12,
    "cache_write": 12,
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
