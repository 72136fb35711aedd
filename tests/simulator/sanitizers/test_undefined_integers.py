"""Divisions by 0 and shifts beyond the width: found where what a launch does depends on the result, and only there."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from fuzz_attn.simulator import session
from fuzz_attn.simulator.access_checks import Finding, FindingKind
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator

KERNELS = "gpu_kernels.py"
_DIVISORS = (1, 2, 3, 4, 5, 6, 0, 8)
_COUNTS = (0, 1, 2, 30, 31, 7, 32, 5)
_OPERATIONS = {
    "divide": (_DIVISORS, "divides by 0"),
    "remainder": (_DIVISORS, "divides by 0"),
    "smallest": ((1, 2, 3, 4, 5, 6, -1, 8), "divides the smallest integer by -1"),
    "left": (_COUNTS, "shifts by 32 of 32 bits"),
    "right": ((*_COUNTS[:6], -1, 5), "shifts by -1 of 32 bits"),
}


def _numbers(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _found(kernel: Any, *arguments: Any, **constants: Any) -> list[Finding]:
    with simulate() as session:
        kernel[(1,)](*arguments, **constants)
    return session.findings


@pytest.mark.parametrize("operation", _OPERATIONS)
def test_an_undefined_result_that_is_stored_is_found(kernels: Any, operation: str) -> None:
    numbers, words = _OPERATIONS[operation]
    kernel = kernels.quotient_kernel
    for limit, expected in ((6, []), (7, [FindingKind.UNDEFINED_INTEGER])):
        out = torch.zeros(8, dtype=torch.int32)
        found = _found(kernel, _numbers(*numbers), out, limit, OPERATION=operation)
        assert [one.kind for one in found] == expected
    lines, first = inspect.getsourcelines(kernel.fn)
    text = lines[found[0].location.line - first]
    assert "number" in text
    assert "result =" in text
    assert found[0].message.startswith(f"{words}: the result is undefined")
    assert found[0].count == 1


def test_what_was_stored_stays_after_a_probe(kernels: Any) -> None:
    out = torch.full((8,), -5, dtype=torch.int32)
    assert _found(kernels.quotient_kernel, _numbers(*_DIVISORS), out, 7, OPERATION="divide")
    assert out.tolist() == [100, 50, 33, 25, 20, 16, 0, -5]


def test_a_launch_that_adds_to_memory_is_probed_from_its_start(kernels: Any) -> None:
    """The quotient is dropped, and the launch counts: a probe of what it left would count twice."""
    out = torch.zeros(1)
    assert not _found(kernels.counting_kernel, 9, 0, out)
    assert out.item() == 1.0


def test_a_selection_that_drops_an_undefined_result(kernels: Any) -> None:
    out = torch.zeros(8, dtype=torch.int32)
    assert not _found(kernels.selected_quotient_kernel, _numbers(*_DIVISORS), out)
    assert out.tolist() == [100, 50, 33, 25, 20, 16, 7, 12]


@pytest.mark.parametrize(("divisor", "limit", "found"), [(3, 8, False), (0, 0, False), (0, 1, True)])
def test_an_undefined_result_in_an_address(kernels: Any, divisor: int, limit: int, found: bool) -> None:
    kinds = {one.kind for one in _found(kernels.quotient_address_kernel, torch.rand(8), divisor, limit, torch.zeros(8))}
    assert kinds == ({FindingKind.UNDEFINED_INTEGER} if found else set())


def test_an_undefined_result_that_decides_a_branch(kernels: Any) -> None:
    for divisor, counted, expected in ((2, 1.0, []), (0, 0.0, [FindingKind.UNDEFINED_INTEGER])):
        out = torch.zeros(1)
        found = _found(kernels.quotient_branch_kernel, 9, divisor, out)
        assert [one.kind for one in found] == expected
        assert out.item() == counted


def test_each_launch_with_the_same_numbers_is_judged(kernels: Any) -> None:
    simulator = Simulator()
    for _ in range(2):
        with simulate(simulator) as session:
            kernels.quotient_branch_kernel[(1,)](9, 0, torch.zeros(1))
        assert [one.kind for one in session.findings] == [FindingKind.UNDEFINED_INTEGER]


def test_a_probe_records_no_masks(kernels: Any) -> None:
    simulator = Simulator(coverage=True)
    with simulate(simulator) as session:
        kernels.quotient_branch_kernel[(1,)](9, 0, torch.zeros(1))
    assert session.findings
    before = simulator.masks.seen.copy()
    with simulate(simulator):
        kernels.quotient_branch_kernel[(1,)](9, 5, torch.zeros(1))
    assert simulator.masks.seen == before, "the branch is not taken in either launch, only in a probe"


def test_tensors_that_are_too_large_to_copy_are_not_probed(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST_COPIED", 3)
    assert not _found(kernels.quotient_branch_kernel, 9, 0, torch.zeros(1))


def test_programs_without_such_operations_are_not_prepared_for_probes(kernels: Any) -> None:
    simulator = Simulator()
    with simulate(simulator) as session:
        seen: list[bool] = []
        session.launching = lambda program, bound, extents: seen.append(program.undefined)
        kernels.multiple_kernel[(1,)](torch.rand(64), _numbers(16), torch.zeros(16))
        kernels.quotient_branch_kernel[(1,)](9, 2, torch.zeros(1))
    assert seen == [False, True]
