"""Imports in a fresh process: modules that must not need torch, Triton or Hypothesis do not import them."""

import subprocess
import sys

import pytest

KERNEL_STACK = frozenset({"torch", "triton"})
EVERYTHING_HEAVY = KERNEL_STACK | {"hypothesis"}
LOADED = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sys.modules)"


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("fuzz_attn", EVERYTHING_HEAVY),
        ("fuzz_attn.case.attention_case", EVERYTHING_HEAVY),
        ("fuzz_attn.case.domain", EVERYTHING_HEAVY),
        ("fuzz_attn.oracle.verdict", EVERYTHING_HEAVY),
        ("fuzz_attn.strategies.cases", KERNEL_STACK),
        # pytest loads the plugin in every repository of an environment.
        ("fuzz_attn.pytest_plugin", KERNEL_STACK),
        ("fuzz_attn.cli.main", KERNEL_STACK),
    ],
)
def test_import_is_light(module: str, forbidden: frozenset[str]) -> None:
    command = [sys.executable, "-c", LOADED, module]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert module in loaded
    assert not forbidden & set(loaded)
