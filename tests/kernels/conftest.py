"""Fixtures for tests that launch kernels in the interpreter: they restore Triton's language afterwards."""

from collections.abc import Iterator

import pytest

from fuzz_attn.backends import shims
from fuzz_attn.backends.interpreter import InterpreterBackend


@pytest.fixture(autouse=True)
def _quick_device_calls() -> Iterator[None]:
    with shims.quick_device_calls():
        yield


@pytest.fixture(scope="session")
def interpreter() -> InterpreterBackend:
    """The interpreter with the shims that the installed Triton needs, mainly for bfloat16 and fp8."""
    prepared = InterpreterBackend()
    prepared.prepare()
    prepared.preflight()
    return prepared
