"""Coverage of masks and branches: which outcomes a launch records."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.simulator.codegen.program import (
    ALL_FALSE,
    ALL_TRUE,
    COMPLETE,
    COMPLETE_SINGLE,
    MIXED,
    SEVERAL,
    Masks,
    cover,
)
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator

KERNELS = "operation_kernels.py"


@pytest.fixture
def simulator() -> Simulator:
    """Return a simulator that records masks and has recorded none."""
    return Simulator(coverage=True)


def _add(simulator: Simulator, add_kernel: Any, size: int, programs: int = 4) -> None:
    with simulate(simulator):
        add_kernel[(programs,)](torch.ones(size), torch.ones(size), torch.zeros(size), size, BLOCK=16)


def _bits(masks: Masks) -> dict[str, int]:
    return {site.kind: bits for site, bits in masks.items()}


def test_outcomes_are_those_of_single_programs(simulator: Simulator, sample_kernels: Any) -> None:
    # 64 elements fill four programs; 40 leave one full twice, one mixed and one empty.
    _add(simulator, sample_kernels.add_kernel, 64)
    assert _bits(simulator.masks) == {"load": ALL_TRUE | SEVERAL, "store": ALL_TRUE | SEVERAL}
    _add(simulator, sample_kernels.add_kernel, 40)
    assert _bits(simulator.masks) == {"load": COMPLETE | SEVERAL, "store": COMPLETE | SEVERAL}


def test_all_compilations_of_a_kernel_count_together(simulator: Simulator, sample_kernels: Any) -> None:
    _add(simulator, sample_kernels.add_kernel, 16, programs=1)
    with simulate(simulator):
        sample_kernels.add_kernel[(1,)](torch.ones(5), torch.ones(5), torch.zeros(5), 5, BLOCK=32)
    assert _bits(simulator.masks) == {"load": ALL_TRUE | MIXED | SEVERAL, "store": ALL_TRUE | MIXED | SEVERAL}


def test_sites_name_their_source_line(simulator: Simulator, sample_kernels: Any) -> None:
    _add(simulator, sample_kernels.add_kernel, 40)
    lines, first = inspect.getsourcelines(sample_kernels.add_kernel.fn)
    store = first + next(index for index, line in enumerate(lines) if "tl.store" in line)
    sites = [site for site, _ in simulator.masks.items() if site.kind == "store"]
    assert [(site.kernel, site.line) for site in sites] == [("add_kernel", store)]


def _control(simulator: Simulator, control_kernel: Any, limits: list[int]) -> list[int]:
    """Return the bits of the branches of a kernel with two early returns, after a launch with these limits."""
    limit = torch.tensor(limits, dtype=torch.int32)
    with simulate(simulator):
        control_kernel[(len(limits),)](torch.zeros_like(limit), limit, OPERATION="early_return")
    return [bits for site, bits in simulator.masks.items() if site.kind == "branch"]


def test_a_branch_that_was_not_reached_has_no_outcome(simulator: Simulator, kernels: Any) -> None:
    first, second = _control(simulator, kernels.control_kernel, [9, 9, 9])
    assert first in (ALL_TRUE, ALL_FALSE)
    assert second == 0


def test_a_condition_of_one_element_cannot_be_mixed(simulator: Simulator, kernels: Any) -> None:
    assert _control(simulator, kernels.control_kernel, [9, 0, 0]) == [COMPLETE_SINGLE, COMPLETE_SINGLE]


@pytest.mark.parametrize("known", range(8))
def test_known_outcomes_are_kept_and_new_ones_added(known: int) -> None:
    rows = {ALL_TRUE: [True, True], ALL_FALSE: [False, False], MIXED: [True, False]}
    for bits in range(1, 8):
        seen = [0, known]
        cover(seen, 1, np.array([row for bit, row in rows.items() if bit & bits]))
        assert seen == [0, known | bits]


def test_nothing_is_recorded_without_coverage(simulator: Simulator, sample_kernels: Any) -> None:
    with simulate():
        sample_kernels.add_kernel[(1,)](torch.ones(4), torch.ones(4), torch.zeros(4), 4, BLOCK=16)
    assert _bits(simulator.masks) == {}


@pytest.mark.parametrize("seed", range(40))
def test_factors_that_share_no_axis_have_the_outcomes_of_their_conjunction(seed: int) -> None:
    generator = np.random.default_rng(seed)
    shapes = [(generator.choice([1, 3]), 4, 1), (generator.choice([1, 3]), 1, 3)]
    factors = [generator.random(shape) < generator.choice([0, 0.1, 0.5, 0.9, 1]) for shape in shapes]
    conjunction = factors[0] & factors[1]
    rows = conjunction.reshape(conjunction.shape[0], -1)
    outcomes = {MIXED if row.any() and not row.all() else ALL_TRUE if row.all() else ALL_FALSE for row in rows}
    for before in range(8):
        seen = [before]
        cover(seen, 0, *factors)
        assert seen == [before | sum(outcomes)]
