"""Tuples as arguments of a launch: bound as Triton's launcher binds them, compared with its interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from fuzz_attn.errors import UnsupportedOperation
from fuzz_attn.simulator.access_checks import Finding, FindingKind
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator

KERNELS = "tuple_kernels.py"
SIMULATOR = Simulator()
# Triton 3.6's interpreter, the reference here, makes a bool within a tuple an int32 and then refuses it as an int1.
FLAG = int if triton.__version__.startswith("3.6.") else bool


def _simulated(launcher: Callable[..., None], keywords: dict[str, Any]) -> list[Finding]:
    with simulate(SIMULATOR) as session:
        launcher(**keywords)
    return session.findings


def _check(kernels: Any, interpreter: Any, launcher: Callable[..., None], **keywords: Any) -> torch.Tensor:
    """Launch in the interpreter and in the simulator, compare both outputs, and return one."""
    name = f"{kernels.__file__}:{launcher.__name__}"
    answers, _ = interpreter.call(name, **keywords)
    expected = dict(zip(keywords, answers, strict=True))["out"]
    assert _simulated(launcher, keywords) == []
    actual: torch.Tensor = keywords["out"]
    assert torch.equal(actual, expected)
    assert actual.any()
    return actual


def test_a_tuple_of_tensors_and_numbers(kernels: Any, interpreter: Any) -> None:
    x, y = torch.randn(50), torch.randn(50)
    for shift in (1, 0, -7, 2**31 + 5):
        _check(kernels, interpreter, kernels.add_plain, x=x, y=y, out=torch.zeros(50), shift=shift)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_named_tuple_with_and_without_an_optional_tensor(kernels: Any, interpreter: Any, dtype: torch.dtype) -> None:
    x = torch.randn(5, 20).to(dtype)[:, 3:15]
    for scale in (None, torch.randn(5), None):
        out = torch.zeros(5, 12, dtype=dtype)
        _check(kernels, interpreter, kernels.copy_named, x=x, out=out, scale=scale)


@pytest.mark.parametrize("shifts", [(), (3,), (3, -5), (1, 1, 1)])
@pytest.mark.parametrize("scaled", [False, True])
def test_tuples_within_tuples(kernels: Any, interpreter: Any, shifts: tuple[int, ...], scaled: bool) -> None:
    x, scale = torch.randn(5, 12), torch.randn(5) if scaled else None
    for factor, double in ((0.5, True), (-2.0, False), (0.5, False)):
        out = torch.zeros(5, 12)
        _check(
            kernels,
            interpreter,
            kernels.copy_nested,
            x=x,
            out=out,
            factor=factor,
            shifts=shifts,
            scale=scale,
            double=FLAG(double),
        )


def test_constants_inside_a_tuple(kernels: Any) -> None:
    for value in (1.5, 2.5, 0.0):
        for function, expected in ((kernels.twice, 2 * value), (kernels.negated, -value)):
            out = torch.full((16,), 9.0)
            with simulate(SIMULATOR):
                kernels.constant_tuple_kernel[(1,)](out, (tl.constexpr(8), tl.constexpr(value), function))
            assert out.tolist() == [expected] * 8 + [9.0] * 8


def test_a_constant_passed_to_a_parameter_without_an_annotation(kernels: Any) -> None:
    for block, value in ((8, 1.5), (4, 2.5), (8, 2.5)):
        out = torch.zeros(8)
        with simulate(SIMULATOR):
            kernels.flat_constant_kernel[(1,)](out, tl.constexpr(block), tl.constexpr(value))
        assert out.tolist() == [value] * block + [0.0] * (8 - block)


def test_a_finding_names_the_element_of_the_tuple(kernels: Any) -> None:
    x, y, out = torch.zeros(50), torch.zeros(20), torch.zeros(50)
    (finding,) = _simulated(kernels.add_plain, {"x": x, "y": y, "out": out, "shift": 1})
    assert (finding.kind, finding.tensor) == (FindingKind.OUT_OF_BOUNDS_LOAD, "pointers[1]")
    arguments = {"x": torch.zeros(5, 12), "out": torch.zeros(4, 12), "scale": torch.ones(5)}
    (finding,) = _simulated(kernels.copy_named, arguments)
    assert (finding.kind, finding.tensor) == (FindingKind.OUT_OF_BOUNDS_STORE, "target.data")


def test_elements_that_share_a_storage_are_watched_for_races(kernels: Any) -> None:
    storage = torch.randn(6, 12)
    (finding,) = _simulated(kernels.copy_named, {"x": storage[:5], "out": storage[1:], "scale": None})
    assert finding.kind is FindingKind.RACE


def test_programs_with_tuples_come_back_from_the_disk(kernels: Any, tmp_path: Path) -> None:
    x, scale = torch.randn(5, 12), torch.randn(5)
    for kept in (1, 1, 2):
        simulator = Simulator(cache_dir=tmp_path)
        with simulate(simulator):
            out = torch.zeros(5, 12)
            kernels.copy_named(x, out, scale if kept == 1 else None)
        assert torch.equal(out, x * scale[:, None] if kept == 1 else x)
        assert len(list(tmp_path.iterdir())) == kept


@pytest.mark.parametrize("value", [[1], "text", {1: 2}, torch.float32])
def test_an_element_that_triton_does_not_take(kernels: Any, value: object) -> None:
    x = torch.zeros(4)
    with (
        simulate(SIMULATOR),
        pytest.raises(UnsupportedOperation, match=rf"argument 'sizes\[0\]' of {type(value).__name__}"),
    ):
        kernels.plain_tuple_kernel[(1,)]((x, x, x), (value, 4), BLOCK=4)
