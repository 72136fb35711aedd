"""Atomics happen in the order of the programs, which is one of the orders that a GPU may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzz_attn.simulator.findings import FindingKind
from fuzz_attn.simulator.session import simulate

KERNELS = "operation_kernels.py"


def _atomic_truth(operation: str, target: list[int], x: list[int]) -> tuple[list[int], list[int]]:
    old = [0] * len(x)
    updates: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b, "max": max, "min": min, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b, "xchg": lambda a, b: b,
    }  # fmt: skip
    for index, value in enumerate(x):
        if index % 16 != 3:
            slot = index % len(target)
            old[index], target[slot] = target[slot], updates[operation](target[slot], value)
    return target, old


ARITHMETIC_ATOMICS = ["add", "max", "min", "xchg"]
ATOMICS = [(torch.int32, name) for name in [*ARITHMETIC_ATOMICS, "and", "or", "xor"]]
ATOMICS += [(torch.float32, name) for name in ARITHMETIC_ATOMICS]


@pytest.mark.parametrize(("dtype", "operation"), ATOMICS)
def test_atomics_happen_in_the_order_of_programs(kernels: Any, dtype: torch.dtype, operation: str) -> None:
    x = torch.randint(-9, 10, (64,), generator=torch.Generator().manual_seed(7))
    target = torch.arange(5) - 2
    final, old = _atomic_truth(operation, target.tolist(), x.tolist())
    memory, seen = target.to(dtype), torch.zeros(64, dtype=dtype)
    with simulate() as session:
        kernels.atomic_kernel[(4,)](memory, seen, x.to(dtype), OPERATION=operation, BLOCK=16, SLOTS=5)
    assert not session.findings
    assert memory.tolist() == final
    # Triton makes a float's maximum of two integer atomics, one for each sign, so other programs come in between.
    if dtype == torch.int32 or operation not in ("max", "min"):
        assert seen.tolist() == old


def test_a_spin_lock_works(kernels: Any) -> None:
    lock, count, log = (torch.zeros(size, dtype=torch.int32) for size in (1, 1, 5))
    with simulate() as session:
        kernels.lock_kernel[(5,)](lock, count, log)
    # The race sanitizer does not know that a lock orders accesses.
    assert {finding.kind for finding in session.findings} == {FindingKind.RACE}
    assert (lock.item(), count.item(), log.tolist()) == (0, 5, [0, 1, 2, 3, 4])
