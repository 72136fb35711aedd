"""Coverage of masks and branches: what a launch adds, what merges, what is still missing."""

from __future__ import annotations

import inspect
import json

import torch

from fuzz_attn.backends.simulator import Coverage, Options, simulate
from fuzz_attn.backends.simulator.coverage import ALL_FALSE, ALL_TRUE, MIXED
from tests.simulator.operation_kernels import control_kernel
from tests.simulator.sample_kernels import add_kernel

RECORD = Options(coverage=True)


def _added(sizes: list[int], programs: int = 4) -> Coverage:
    coverage = Coverage()
    for size in sizes:
        with simulate(RECORD) as session:
            add_kernel[(programs,)](torch.ones(size), torch.ones(size), torch.zeros(size), size, BLOCK=16)
        coverage = coverage + session.coverage
    return coverage


def _bits(coverage: Coverage) -> dict[str, int]:
    return {site.kind: bits for site, bits in coverage.outcomes.items()}


def test_outcomes_are_those_of_single_programs() -> None:
    # 64 elements fill four programs; 40 leave one full twice, one mixed and one empty.
    assert _bits(_added([64]))["store"] & MIXED == 0
    assert _bits(_added([40])) == {"load": ALL_TRUE | ALL_FALSE | MIXED, "store": ALL_TRUE | ALL_FALSE | MIXED}


def test_sites_name_their_source_line() -> None:
    lines, first = inspect.getsourcelines(add_kernel.fn)
    store = first + next(index for index, line in enumerate(lines) if "tl.store" in line)
    sites = [site for site in _added([40]).outcomes if site.kind == "store"]
    assert [(site.kernel, site.line) for site in sites] == [("add_kernel", store)]


def test_merging_and_json_lose_nothing() -> None:
    left, right = _added([64]), _added([40])
    merged = left + right
    assert all(bits == left.outcomes[site] | right.outcomes[site] for site, bits in merged.outcomes.items())
    assert Coverage.from_json(json.loads(json.dumps(merged.to_json()))) == merged


def test_what_is_missing_is_named() -> None:
    with simulate(RECORD) as session:
        control_kernel[(3,)](
            torch.zeros(3, dtype=torch.int32), torch.tensor([9, 9, 9], dtype=torch.int32), OPERATION="early_return"
        )
    branches = [names for site, names in session.coverage.missing().items() if site.kind == "branch"]
    # The first branch went one way only, the second was never reached.
    assert [len(names) for names in branches] == [1, 2]


def test_nothing_is_recorded_unless_asked_for() -> None:
    with simulate() as session:
        add_kernel[(1,)](torch.ones(4), torch.ones(4), torch.zeros(4), 4, BLOCK=16)
    assert session.coverage == Coverage()
