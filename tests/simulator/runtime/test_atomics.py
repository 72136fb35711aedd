"""Atomics happen in the order of the programs, which is one of the orders that a GPU may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton.language as tl

from fuzz_attn.errors import UnsupportedOperation
from fuzz_attn.simulator.access_checks import FindingKind
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


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_swap_where_a_place_holds_what_is_expected(kernels: Any, dtype: torch.dtype) -> None:
    target = torch.tensor([5, 0, 5, 0, 5, 5, 1, 2], dtype=dtype)
    before, seen = target.clone(), torch.zeros(2, 8, dtype=dtype)
    with simulate() as session:
        kernels.compare_and_swap_kernel[(2,)](target, seen, 5, 7)
    after = torch.where(before == 5, 7, before)
    assert torch.equal(target, after)
    assert torch.equal(seen, torch.stack([before, after]))
    assert not session.findings


def test_an_atomic_outside_of_its_tensor_is_found_and_the_others_happen(kernels: Any) -> None:
    count, out = torch.zeros(5, dtype=torch.int32), torch.ones(8, dtype=torch.int32)
    with simulate() as session:
        kernels.count_kernel[(1,)](count, out, BLOCK=8)
    (finding,) = session.findings
    assert (finding.kind, finding.tensor, finding.index) == (FindingKind.OUT_OF_BOUNDS_STORE, "count_ptr", 5)
    assert finding.count == 3
    assert count.tolist() == [1] * 5


def test_an_atomic_reads_what_nothing_has_written(kernels: Any) -> None:
    with simulate() as session:
        count = torch.empty(8, dtype=torch.int32)
        kernels.count_kernel[(1,)](count, torch.zeros(8, dtype=torch.int32), BLOCK=8)
    (finding,) = session.findings
    assert (finding.kind, finding.tensor, finding.index) == (FindingKind.UNINITIALISED_READ, "count_ptr", 0)


needs_loads = pytest.mark.skipif(not hasattr(tl, "atomic_load"), reason="Triton has no atomic loads before 3.9")


@needs_loads
def test_atomic_loads_and_stores(kernels: Any) -> None:
    x = torch.arange(8, dtype=torch.int32)
    with simulate() as session:
        out = torch.empty(8, dtype=torch.int32)
        kernels.atomic_copy_kernel[(1,)](x, out, 5)
    assert out[:5].tolist() == [1, 2, 3, 4, 5]
    assert not session.findings


@needs_loads
def test_atomic_loads_and_stores_are_checked(kernels: Any) -> None:
    with simulate() as session:
        x = torch.empty(4, dtype=torch.int32)
        kernels.atomic_copy_kernel[(1,)](x, torch.zeros(3, dtype=torch.int32), 5)
    assert {(finding.kind, finding.tensor, finding.index) for finding in session.findings} == {
        (FindingKind.OUT_OF_BOUNDS_LOAD, "x_ptr", 4),
        (FindingKind.UNINITIALISED_READ, "x_ptr", 0),
        (FindingKind.OUT_OF_BOUNDS_STORE, "out_ptr", 3),
    }


@needs_loads
@pytest.mark.parametrize("limited", [False, True])
def test_a_poll_sees_what_programs_before_it_stored(kernels: Any, limited: bool) -> None:
    flag, out = (torch.zeros(size, dtype=torch.int32) for size in (1, 4))
    with simulate():
        kernels.poll_kernel[(4,)](flag, out, 0, LIMITED=limited)
    assert out.tolist() == [1, 1, 1, 1]


@needs_loads
def test_a_poll_for_a_later_program_ends_or_is_refused(kernels: Any) -> None:
    flag, out = torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    with simulate():
        kernels.poll_kernel[(1,)](flag, out, 9, LIMITED=True)
    assert out.item() == 0
    with simulate(), pytest.raises(UnsupportedOperation, match=r"tt\.atomic_poll .*waits for a value .*:\d+"):
        kernels.poll_kernel[(1,)](flag, out, 9, LIMITED=False)
