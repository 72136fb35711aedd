"""Hints to the compiler: false ones are found at their lines, true ones and those that reach no access are not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.simulator.access_checks import Finding, FindingKind
from fuzz_attn.simulator.runtime.hints import inconsecutive, run_starts, unequal
from fuzz_attn.simulator.session import simulate

KERNELS = "gpu_kernels.py"


def _numbers(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _found(kernel: Any, grid: int, *arguments: Any, **constants: Any) -> list[Finding]:
    with simulate() as session:
        kernel[(grid,)](*arguments, **constants)
    assert not session.unsupported
    return session.findings


X, OUT = torch.rand(4096), torch.zeros(4096)
CASES: dict[str, tuple[str, Callable[[Any, Any], list[Finding]], Any, Any, str]] = {
    "multiple": (
        "multiple_kernel", lambda k, starts: _found(k, 2, X, starts, OUT), _numbers(32, 16), _numbers(32, 24),
        "tl.multiple_of promises multiples of 16, but 24 is used in an address of x_ptr",
    ),
    "contiguous": (
        "contiguous_kernel", lambda k, size: _found(k, 2, X, size, OUT, BLOCK=16), 64, 24,
        "tl.max_contiguous promises groups of 16 consecutive numbers, but others are used in an address of x_ptr",
    ),
    "constant": (
        "constant_kernel", lambda k, group: _found(k, 1, X, group, OUT), 8, 2,
        "tl.max_constancy promises groups of 4 equal numbers, but others are used in an address of x_ptr",
    ),
    "tile": (
        "tile_hint_kernel", lambda k, stride: _found(k, 1, X, stride, OUT), 32, 24,
        "tl.multiple_of promises multiples of 16, but 24 is used in an address of x_ptr",
    ),
    "row": (
        "row_hint_kernel",
        lambda k, stride: _found(k, 2, X, stride, OUT),
        32,
        24,
        "tl.multiple_of promises multiples of 16, but 24 is used in an address of x_ptr",
    ),
    "sum": (
        "sum_hint_kernel",
        lambda k, start: _found(k, 2, X, start, OUT),
        48,
        40,
        "tl.multiple_of promises multiples of 16, but 40 is used in an address of x_ptr",
    ),
    "pointer": (
        "pointer_hint_kernel", lambda k, stride: _found(k, 1, X, stride, OUT), 4, 6,
        "tl.multiple_of promises multiples of 16, but an address that ends in 8 is used in an address of x_ptr",
    ),
    "carried": (
        "carried_hint_kernel", lambda k, step: _found(k, 1, X, step, 3, OUT), 16, 20,
        "tl.multiple_of promises multiples of 16, but 20 is used in an address of x_ptr",
    ),
    "mask": (
        "mask_hint_kernel", lambda k, size: _found(k, 1, OUT, size), 24, 25,
        "tl.max_constancy promises groups of 8 equal elements, but a mask changes within one",
    ),
    "assume": (
        "assume_kernel", lambda k, sizes: _found(k, 3, sizes, OUT), _numbers(8, 0, 16), _numbers(8, 0, 12),
        "tl.assume promises a condition that is false",
    ),
}  # fmt: skip
LINES = {
    "multiple": "start = tl.multiple_of",
    "contiguous": "ring =",
    "constant": "places =",
    "tile": "places =",
    "row": "starts =",
    "sum": "places =",
    "pointer": "pointers =",
    "carried": "for _",
    "mask": "mask =",
    "assume": "tl.assume",
}


@pytest.mark.parametrize("name", CASES)
def test_a_false_hint_is_found_at_its_line_and_a_true_one_is_not(kernels: Any, name: str) -> None:
    kernel_name, launch, true, false, message = CASES[name]
    kernel = getattr(kernels, kernel_name)
    assert not launch(kernel, true)
    found = launch(kernel, false)
    assert [one.kind for one in found] == [FindingKind.FALSE_HINT]
    assert found[0].message == message
    lines, first = inspect.getsourcelines(kernel.fn)
    assert LINES[name] in lines[found[0].location.line - first]


def test_the_program_is_the_one_in_which_the_hint_is_false(kernels: Any) -> None:
    assert _found(kernels.multiple_kernel, 2, X, _numbers(32, 24), OUT)[0].program == (1, 0, 0)
    assert _found(kernels.assume_kernel, 3, _numbers(8, 0, 12), OUT)[0].program == (2, 0, 0)


@pytest.mark.parametrize(("limit", "expected"), [(4, []), (5, [FindingKind.FALSE_HINT])])
def test_a_hint_is_not_judged_by_elements_that_are_not_accessed(
    kernels: Any, limit: int, expected: list[FindingKind]
) -> None:
    places = _numbers(0, 2, 4, 6, 9, 11, 13, 15)
    found = _found(kernels.masked_hint_kernel, 1, X, places, limit, OUT)
    assert [one.kind for one in found] == expected


def test_a_number_with_a_hint_is_a_number(kernels: Any) -> None:
    out = torch.zeros(16)
    assert not _found(kernels.hinted_constant_kernel, 1, X, out)
    assert torch.equal(out, X[16:32])


def test_only_the_first_element_of_a_run_is_a_multiple() -> None:
    values = np.array([[16, 17, 18, 32, 33, 40]])
    assert run_starts(values)[0].tolist() == [True, False, False, True, False, True]
    rows = np.arange(3)[:, None] * 16 + np.arange(4)
    assert run_starts(rows[None])[0].tolist() == [[True, False, False, False]] * 3


def test_groups_along_each_axis() -> None:
    values = np.array([[[0, 1, 2, 3], [4, 5, 7, 8]]])
    assert not inconsecutive(values, (1, 2)).any()
    assert inconsecutive(values, (1, 4))[0].tolist() == [[False] * 4, [False, False, True, True]]
    assert unequal(values // 4, (1, 4))[0].tolist() == [[False] * 4, [False, False, False, True]]
    assert unequal(values // 4, (2, 1)).sum() == 4


@pytest.mark.parametrize(("size", "stride", "found"), [(16, 1, False), (12, 1, True), (12, 8, False)])
def test_consecutive_numbers_matter_without_a_stride(kernels: Any, size: int, stride: int, found: bool) -> None:
    kinds = [one.kind for one in _found(kernels.clamped_rows_kernel, 1, X, size, stride, OUT)]
    assert kinds == [FindingKind.FALSE_HINT] * found
