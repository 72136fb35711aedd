"""The kernels lower to verified TTIR for Hopper: the compiler rejects much that the interpreter accepts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("lowering_program.py")


@pytest.fixture(scope="module")
def lowered(run_program: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """The output of `lowering_program.py`: case -> kernel -> facts."""
    run = run_program(PROGRAM, without=["TRITON_INTERPRET"])
    assert run.returncode == 0, run.stderr
    results: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return results


TWO = ["kernel_unified_attention_2d"]
THREE = ["kernel_unified_attention_3d", "reduce_segments"]
DECODE = ["kernel_paged_attention_2d"]
CONTEXT = ["kernel_context_attention"]
DOTS = {"reduce_segments": 0, "kernel_context_attention": 4}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("case", "kernels"),
    [
        ("plain", TWO),
        ("plain_3d", THREE),
        ("features", TWO),
        ("features_3d", THREE),
        ("bfloat16", TWO),
        ("float32", TWO),
        ("fp8_cache", THREE),
        ("fp8_q", TWO),
        ("odd_sizes", TWO),
        ("large", TWO),
        ("other_numbers", TWO),
        ("decode_plain", DECODE),
        ("decode_filtered", DECODE),
        ("decode_features", DECODE),
        ("decode_bfloat16", DECODE),
        ("decode_float32", DECODE),
        ("decode_fp8_cache", DECODE),
        ("decode_e5m2_bytes", DECODE),
        ("decode_odd_sizes", DECODE),
        ("decode_large", DECODE),
        ("decode_other_numbers", DECODE),
        ("context_plain", CONTEXT),
        ("context_skipping", CONTEXT),
        ("context_features", CONTEXT),
        ("context_bfloat16", CONTEXT),
        ("context_float32", CONTEXT),
        ("context_fp8_cache", CONTEXT),
        ("context_e5m2_bytes", CONTEXT),
        ("context_odd_sizes", CONTEXT),
        ("context_large", CONTEXT),
        ("context_other_numbers", CONTEXT),
        ("chunked", CONTEXT + DECODE),
        ("chunked_decode", DECODE),
    ],
)
def test_case_lowers_to_verified_ir(lowered: dict[str, dict[str, Any]], case: str, kernels: list[str]) -> None:
    assert list(lowered[case]) == kernels
    for kernel, facts in lowered[case].items():
        assert facts["verified"]
        assert facts["dots"] == DOTS.get(kernel, 2)


@pytest.mark.parametrize(
    ("kernels", "other", "same", "different"),
    [
        (TWO, "other_numbers", "features", "plain"),
        (DECODE, "decode_other_numbers", "decode_features", "decode_filtered"),
        (CONTEXT, "context_other_numbers", "context_features", "context_skipping"),
    ],
    ids=["unified", "decode", "context"],
)
def test_runtime_numbers_do_not_change_the_compile_key(
    lowered: dict[str, dict[str, Any]], kernels: list[str], other: str, same: str, different: str
) -> None:
    (kernel,) = kernels
    assert lowered[other][kernel]["key"] == lowered[same][kernel]["key"]
    assert lowered[different][kernel]["key"] != lowered[same][kernel]["key"]
