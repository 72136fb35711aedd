"""Forks compile kernels; one that dies loses only the kernel that it was compiling."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz_attn.backends.compiler_compat import WantedKernel
from fuzz_attn.engine.compiling import pool
from fuzz_attn.engine.compiling.pool import COMPILED, FAILED, compile_all


def kernel(compile_it: Callable[[], object]) -> WantedKernel:
    return WantedKernel(("kernel", ""), compile_it)


def rejected() -> None:
    raise ValueError("the compiler rejects it")


@pytest.mark.parametrize("processes", [1, 3])
def test_each_kernel_is_compiled_once(processes: int, tmp_path: Path) -> None:
    def appending(number: int) -> Callable[[], object]:
        return lambda: (tmp_path / str(number)).touch(exist_ok=False)

    done = compile_all([kernel(appending(number)) for number in range(10)], processes)
    assert done == {COMPILED: 10}
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(number) for number in range(10)]


def test_what_cannot_be_compiled_is_counted() -> None:
    kernels = [kernel(rejected), kernel(lambda: None), kernel(lambda: os._exit(3)), kernel(lambda: None)]
    assert compile_all(kernels, 2) == {COMPILED: 2, FAILED: 2}
    assert compile_all([], 2) == {}


def test_a_compiler_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STUCK_SECONDS", 0.2)
    forever = os.pipe()
    assert compile_all([kernel(lambda: os.read(forever[0], 1))], 1) == {FAILED: 1}
    os.close(forever[0])
    os.close(forever[1])
