"""The kernels lower to verified TTIR for Hopper: the compiler refuses much that the interpreter lets pass."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("lowering_program.py")


@pytest.fixture(scope="module")
def lowered() -> dict[str, dict[str, Any]]:
    """What `lowering_program.py` printed: case -> kernel -> facts."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    results: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return results


TWO = ["kernel_unified_attention_2d"]
THREE = ["kernel_unified_attention_3d", "reduce_segments"]


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
    ],
)
def test_case_lowers_to_verified_ir(lowered: dict[str, dict[str, Any]], case: str, kernels: list[str]) -> None:
    assert list(lowered[case]) == kernels
    for kernel, facts in lowered[case].items():
        assert facts["verified"]
        assert facts["dots"] == (0 if kernel == "reduce_segments" else 2)


def test_runtime_numbers_do_not_multiply_compile_keys(lowered: dict[str, dict[str, Any]]) -> None:
    (kernel,) = TWO
    assert lowered["other_numbers"][kernel]["key"] == lowered["features"][kernel]["key"]
    assert lowered["plain"][kernel]["key"] != lowered["features"][kernel]["key"]
