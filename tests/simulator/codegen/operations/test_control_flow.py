"""Loops, branches and early returns in which programs take different ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzz_attn.errors import LoopLimitError
from fuzz_attn.simulator.session import simulate

KERNELS = "operation_kernels.py"


def _branches(value: int) -> int:
    return value * 100 if value > 6 else value * 10 if value > 3 else value


def _halved(limit: int) -> int:
    return sum(outer.bit_length() - 1 for outer in range(limit, 0, -3))


def _downwards(limit: int) -> int:
    total = 0
    for i in range(limit, 0, -2):
        total = total * 2 + i
    return total


def _nested(program: int, limit: int) -> int:
    return sum(j + i for i in range(program % 3, limit, 2) for j in range(i, limit))


def _returned_in_branch(program: int, limit: int) -> int | None:
    if limit <= 4:
        return -limit * 2
    return None if program % 2 == 0 else (7 + limit) * 2


# What each program stores, from (program, limit, all limits); None where it returns before its store.
CONTROL: dict[str, Callable[[int, int, list[int]], int | None]] = {
    "for": lambda program, limit, limits: sum(i * program for i in range(limit)),
    "nested": lambda program, limit, limits: _nested(program, limit),
    "negative_step": lambda program, limit, limits: _downwards(limit),
    "while": lambda program, limit, limits: sum(range(limit, 0, -(program + 1))),
    "pointer_while": lambda program, limit, limits: sum(limits[program : program + limit]) * 100 + 1,
    "pointer_for": lambda program, limit, limits: sum(limits[program : program + limit]) * 4,
    "nested_while": lambda program, limit, limits: _halved(limit),
    "if": lambda program, limit, limits: limit * 3 if limit % 2 == 0 else sum(limits[:limit]),
    "early_return": lambda program, limit, limits: None if limit > 4 or program == 2 else limit + 1100,
    "return_in_branch": lambda program, limit, limits: _returned_in_branch(program, limit),
    "helper_returns": lambda program, limit, limits: _branches(limit) + _branches(program),
    "store_in_branch": lambda program, limit, limits: -1 if limit > 3 else limit,
}
LIMITS = [[5, 0, 3, 7, 1, 8, 2, 4, 6], [3] * 9, [0] * 9, [8, 8, 8, 8, 0, 0, 0, 0, 1]]


@pytest.mark.parametrize("operation", CONTROL)
@pytest.mark.parametrize("limits", LIMITS, ids=["mixed", "equal", "zero", "two-sided"])
def test_divergent_control_flow(kernels: Any, operation: str, limits: list[int]) -> None:
    out = torch.full((9,), -12345, dtype=torch.int32)
    with simulate() as session:
        kernels.control_kernel[(9,)](out, torch.tensor(limits, dtype=torch.int32), OPERATION=operation)
    truth = [CONTROL[operation](program, limit, limits) for program, limit in enumerate(limits)]
    assert out.tolist() == [-12345 if value is None else value for value in truth]
    assert not session.findings


@pytest.mark.parametrize("operation", ["for", "while"])
def test_a_loop_that_would_hang_is_an_error(kernels: Any, operation: str) -> None:
    limits = torch.tensor([3, 2**31 - 1], dtype=torch.int32)
    with simulate(), pytest.raises(LoopLimitError, match="the limit is 65536"):
        kernels.control_kernel[(2,)](torch.zeros(2, dtype=torch.int32), limits, OPERATION=operation)
