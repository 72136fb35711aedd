"""The kernels' tests launch in the interpreter by hand: they must leave Triton's language as they found it."""

from collections.abc import Iterator

import pytest

from fuzz_attn.backends import shims


@pytest.fixture(autouse=True)
def _quick_and_contained() -> Iterator[None]:
    with shims.quick_device_calls():
        yield
