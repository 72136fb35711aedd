"""Kernels compiled without a GPU are those that launches on a GPU ask for. The canaries are Triton's private names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from triton.compiler import ASTSource
from triton.runtime import Autotuner, JITFunction

PROGRAM = Path(__file__).with_name("compiling_program.py")


@pytest.mark.slow
def test_launches_find_what_was_compiled_ahead(tmp_path: Path, run_program: Callable[..., Any]) -> None:
    variables = {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    done = run_program(PROGRAM, "unified", "5", variables=variables)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    assert figures.pop("kernels") > 3
    assert figures == {
        "same keys": True,
        "autotuned": 2,
        "with options": [True, 2, 1],
        "refused to lower": [True, False],
        "compiled": [True],
        "found": [[True], "refused"],
        "compiled again": [False],
    }


def test_triton_has_what_is_replaced() -> None:
    for owner, name in (
        (JITFunction, "run"),
        (JITFunction, "_do_compile"),
        (Autotuner, "run"),
        (Autotuner, "prune_configs"),
        (ASTSource, "make_ir"),
    ):
        assert callable(owner.__dict__[name])
