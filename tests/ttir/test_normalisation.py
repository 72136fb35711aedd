"""How a kernel normalises is read from its IR, and nothing is concluded where it does not clearly say."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch

from fuzz_attn.simulator.session import simulate
from fuzz_attn.ttir.kernel_arithmetic import Normalisation

KERNELS = "normalising_kernels.py"
UNDIVIDED = ("undivided", "never", "in_the_loop", "quotient_in_the_loop")


def _attention(kernels: Any, how: str, out: torch.dtype = torch.float16) -> Normalisation:
    q, k, v = torch.ones(16, 32).half(), *torch.ones(2, 64, 32).half()
    arguments = q, k, v, torch.zeros(16, 32, dtype=out), torch.zeros(16, 32), 64, 0.5
    with simulate() as session:
        kernels.attention_kernel[(1,)](*arguments, HOW=how, DIVIDES=how not in UNDIVIDED, TILE=32)
    (found,) = session.arithmetic
    return found.normalisation


@pytest.mark.parametrize("how", ["plainly", "by_a_reciprocal", "base_2", "dot_adds", "guarded", "two_loads"])
@pytest.mark.parametrize("out", [torch.float16, torch.float32])
def test_a_division_after_the_loop_is_last(how: str, out: torch.dtype, kernels: Any) -> None:
    found = _attention(kernels, how, out)
    assert found.kind == "last"
    line = linecache.getline(found.location.file, found.location.line)
    assert ("/ total[:, None]" in line) != (how == "by_a_reciprocal")


def test_sums_and_totals_that_are_stored_undivided_are_divided_later(kernels: Any) -> None:
    assert _attention(kernels, "undivided", torch.float32).kind == "later"


@pytest.mark.parametrize(
    "how",
    [
        "in_the_loop",
        "quotient_in_the_loop",
        "never",
        "halved",
        "started",
        "masked_later",
        "of_the_tile",
        "of_no_maximum",
        "narrow_sum",
        "more_than_the_total",
        "rounded_sums",
        "by_a_logarithm",
        "with_the_total",
        "with_a_logarithm",
    ],
)
def test_nothing_is_concluded_of_other_kernels(how: str, kernels: Any) -> None:
    assert _attention(kernels, how).kind == ""


@pytest.mark.parametrize("how", ["rounded_twice", "added"])
def test_nothing_is_concluded_of_other_stores(how: str, kernels: Any) -> None:
    assert _attention(kernels, how, torch.float32).kind == ""


def test_undivided_sums_in_a_narrow_type_are_not_divided_later(kernels: Any) -> None:
    assert _attention(kernels, "undivided", torch.float16).kind == ""


def _merging(kernels: Any, how: str, sums: torch.dtype = torch.float32) -> Normalisation:
    with simulate() as session:
        kernels.merging_kernel[(1,)](torch.ones(8, 32, dtype=sums), torch.ones(8), torch.ones(8), torch.ones(32), how)
    (found,) = session.arithmetic
    return found.normalisation


@pytest.mark.parametrize("how", ["plainly", "guarded"])
def test_segments_are_merged_by_their_sums_and_totals(how: str, kernels: Any) -> None:
    assert _merging(kernels, how).kind == "merging"


@pytest.mark.parametrize("how", ["of_quotients", "of_weighted_quotients", "divided_first", "undivided"])
def test_nothing_is_concluded_of_other_merges(how: str, kernels: Any) -> None:
    assert _merging(kernels, how).kind == ""


def test_nothing_is_concluded_of_a_merge_of_narrow_sums(kernels: Any) -> None:
    assert _merging(kernels, "plainly", torch.float16).kind == ""


@pytest.mark.parametrize(("name", "kind"), [("copying_kernel", "nothing"), ("rescaling_kernel", "")])
def test_a_kernel_without_exponentials_has_nothing_to_normalise(name: str, kind: str, kernels: Any) -> None:
    with simulate() as session:
        getattr(kernels, name)[(1,)](torch.ones(32), torch.ones(32))
    (found,) = session.arithmetic
    assert found.normalisation.kind == kind
