"""What the kernels' tests share: calls with their references, and the interpreter, whose shims are undone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fuzz_attn.backends import shims
from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.backends.simulator import SimulatorBackend


@pytest.fixture(autouse=True)
def _quick_device_calls() -> Iterator[None]:
    with shims.quick_device_calls():
        yield


@pytest.fixture(scope="session")
def unified(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """The module of calls of `unified_attention`, with their reference."""
    return module_at(Path(__file__).with_name("unified_problem.py"))


@pytest.fixture(scope="session")
def split(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    """The module of calls of the families over split caches, with their reference."""
    return module_at(Path(__file__).with_name("split_problem.py"))


@pytest.fixture(scope="session")
def interpreter() -> InterpreterBackend:
    """The interpreter with the shims that the installed Triton needs, mainly for bfloat16 and fp8."""
    prepared = InterpreterBackend()
    prepared.prepare()
    prepared.preflight()
    return prepared


@pytest.fixture(scope="session")
def simulator() -> SimulatorBackend:
    """The simulator, which also takes kernels that were decorated for the interpreter. It keeps its programs."""
    return SimulatorBackend()
