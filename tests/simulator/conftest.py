"""What the simulator's tests share: sample kernels, loaded by path, and a process that runs Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fuzz_attn.simulator import session
from fuzz_attn.simulator.simulator import Simulator

KERNELS = Path(__file__).with_name("kernels")
Loader = Callable[[Path], ModuleType]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Let torch draw the same numbers in each test, whichever ran before it in the process."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def shared_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let launches without a simulator of their own share one, so that a process lowers each kernel once."""
    monkeypatch.setattr(session, "Simulator", _simulator)


@cache
def _simulator() -> Simulator:
    return Simulator()


@pytest.fixture(scope="session")
def sample_kernels(module_at: Loader) -> ModuleType:
    """Return the module of whole kernels."""
    return module_at(KERNELS / "sample_kernels.py")


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest, module_at: Loader) -> ModuleType:
    """Return the module of kernels that the test module names in KERNELS."""
    return module_at(KERNELS / request.module.KERNELS)


@pytest.fixture(scope="session")
def interpreter(module_at: Loader) -> Iterator[Any]:
    """Return a process that runs kernels in Triton's interpreter."""
    with module_at(Path(__file__).with_name("interpreter_worker.py")).InterpreterWorker() as worker:
        yield worker
