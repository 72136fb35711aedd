"""A short campaign on this project's own kernels of each family, those of all operations."""

from collections.abc import Callable, Iterable

import pytest

from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Setup
from fuzz_attn.operations.registry import FAMILIES
from fuzz_attn.report.mask_gaps import Explanation

CASES = {
    "unified": 60,
    "paged": 40,
    "context": 40,
    "chunked": 40,
    "extend": 40,
    "mla_decode": 40,
    "token_decode": 40,
    "varlen": 40,
    "merge_states": 40,
    "cache_write": 40,
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
