"""Whole kernels, as Triton's tutorials teach them, against torch in float64 and against Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzz_attn.backends.simulator import simulate
from fuzz_attn.kernels.unified_attention import unified_attention
from tests.simulator import sample_kernels
from tests.simulator.attention_inputs import Shape, attention_inputs, random_shape
from tests.simulator.interpreter_worker import InterpreterWorker

HALF_ULP = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
# `make` targets and nightly runs raise it; the figure of record is 2,000.
DRAWN_CASES = int(os.environ.get("FUZZ_ATTN_SIMULATOR_CASES", "40"))


@pytest.fixture(scope="module")
def worker() -> Iterator[InterpreterWorker]:
    with InterpreterWorker() as process:
        yield process


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _both(
    worker: InterpreterWorker, kernel: str, grid: tuple[int, ...], *arguments: Any, **constants: Any
) -> tuple[list[Any], list[Any]]:
    """The arguments after the launch in the simulator and in the interpreter; the simulator must find nothing."""
    copies = [argument.clone() if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    with simulate() as session:
        getattr(sample_kernels, kernel)[grid](*copies, **constants)
    assert not session.findings
    interpreted, _ = worker.launch(str(Path(sample_kernels.__file__)), kernel, grid, *arguments, **constants)
    return copies, interpreted


@pytest.mark.parametrize("columns", [1, 31, 50, 64])
def test_softmax(worker: InterpreterWorker, columns: int) -> None:
    x = _normal(7, columns) * 10
    ours, theirs = _both(
        worker, "softmax_kernel", (7,), x, columns, torch.zeros(7, columns), columns, columns, BLOCK=64
    )
    torch.testing.assert_close(ours[2], torch.softmax(x.double(), 1).float(), rtol=1e-5, atol=1e-7)
    assert torch.equal(ours[2], theirs[2])


def test_layer_norm(worker: InterpreterWorker) -> None:
    x, weight, bias = _normal(9, 100), _normal(100, seed=1), _normal(100, seed=2)
    arguments = (x, 100, weight, bias, torch.zeros(9, 100), 100, 1e-5)
    ours, theirs = _both(worker, "layer_norm_kernel", (9,), *arguments, BLOCK=32)
    expected = torch.nn.functional.layer_norm(x.double(), (100,), weight.double(), bias.double())
    torch.testing.assert_close(ours[4], expected.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[4], theirs[4], rtol=2**-22, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_matmul_in_grouped_order(worker: InterpreterWorker, dtype: torch.dtype) -> None:
    m, n, k = 70, 90, 50
    a, b = _normal(m, k).to(dtype), _normal(k, n, seed=1).to(dtype)
    arguments = (a, k, 1, b, n, 1, torch.zeros(m, n, dtype=dtype), n, 1, m, n, k)
    ours, theirs = _both(worker, "matmul_kernel", (5 * 3,), *arguments, BLOCK_M=16, BLOCK_N=32, BLOCK_K=16, GROUP_M=2)
    exact = a.double() @ b.double()
    bound = HALF_ULP[dtype] * exact.abs() + 2**-24 * k * (a.double().abs() @ b.double().abs())
    assert ((ours[6].double() - exact).abs() <= bound).all()
    assert torch.equal(ours[6], theirs[6])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_flash_attention_forward(worker: InterpreterWorker, dtype: torch.dtype, causal: bool) -> None:
    q, k, v = (_normal(3, 77, 32, seed=seed).to(dtype) for seed in range(3))
    arguments = (q, k, v, torch.zeros_like(q), 0.3, 77 * 32, 32, 77)
    ours, theirs = _both(
        worker, "flash_attention_kernel", (5, 3), *arguments, HEAD_SIZE=32, BLOCK_M=16, BLOCK_N=16, CAUSAL=causal
    )
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=causal, scale=0.3
    )
    # P and the output are each rounded to the dtype; values are below 5.
    torch.testing.assert_close(ours[3].double(), exact, rtol=4 * HALF_ULP[dtype], atol=8 * HALF_ULP[dtype])
    _assert_close_to_interpreter(ours[3], theirs[3], dtype)


def _assert_close_to_interpreter(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> None:
    """Equal but for the order of float32 sums.

    It may move a result by a few ulp of float32, and so tip one rounding: of the result, or of a weight P, which moves
    the result by an ulp of P times a value.
    """
    scale = float(theirs.float().nan_to_num().abs().max().clamp(min=1e-3))
    spacing = 2 * HALF_ULP[dtype]
    torch.testing.assert_close(
        ours.float(), theirs.float(), rtol=spacing, atol=scale * max(spacing, 2**-18), equal_nan=True
    )


def _run_both(worker: InterpreterWorker, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    keywords = attention_inputs(shape)
    copies = dict(keywords, out=keywords["out"].clone())
    with simulate() as session:
        unified_attention(**copies)
    assert not session.findings, (shape, session.findings)
    values, _ = worker.call("fuzz_attn.kernels.unified_attention:unified_attention", **keywords)
    return copies["out"], dict(zip(keywords, values, strict=True))["out"]


def test_unified_attention_on_drawn_cases(worker: InterpreterWorker) -> None:
    equal = 0
    for seed in range(DRAWN_CASES):
        shape = random_shape(seed)
        ours, theirs = _run_both(worker, shape)
        equal += torch.equal(ours.float(), theirs.float())
        if shape.fp8_output:
            # One rounding of e4m3fn has three bits of significand.
            torch.testing.assert_close(ours.float(), theirs.float(), rtol=2**-3, atol=2**-9, equal_nan=True)
        else:
            _assert_close_to_interpreter(ours, theirs, shape.dtype)
    assert equal > DRAWN_CASES // 2, "most results are equal bit for bit"
