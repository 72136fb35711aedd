"""What the simulator's tests share: sample kernels, loaded by path, and a process that runs Triton's interpreter."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@functools.cache
def _loaded(path: Path) -> Any:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def sample_kernels() -> Any:
    """Return the module of whole kernels."""
    return _loaded(Path(__file__).with_name("sample_kernels.py"))


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> Any:
    """Return the module of kernels that the test module names in KERNELS."""
    return _loaded(Path(__file__).with_name(request.module.KERNELS))


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Any]:
    """Return a process that runs kernels in Triton's interpreter."""
    with _loaded(Path(__file__).with_name("interpreter_worker.py")).InterpreterWorker() as worker:
        yield worker
