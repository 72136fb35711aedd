"""The kernels' tests launch in the interpreter by hand: they must leave Triton's language as they found it."""

from collections.abc import Iterator

import pytest

from fuzz_attn.backends import shims
from fuzz_attn.backends.interpreter import InterpreterBackend


@pytest.fixture(autouse=True)
def _quick_and_contained() -> Iterator[None]:
    with shims.quick_device_calls():
        yield


@pytest.fixture(scope="session")
def interpreter() -> InterpreterBackend:
    """The interpreter with the shims that the installed Triton needs, bfloat16 and fp8 above all."""
    prepared = InterpreterBackend()
    prepared.prepare()
    prepared.preflight()
    return prepared
