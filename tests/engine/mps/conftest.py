"""A stand-in for NVIDIA's control program, so that a Multi-Process Service can be tested without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz_attn.backends.gpus import PIPES


@pytest.fixture(scope="module")
def control_program() -> Iterator[None]:
    """Put the stand-in on the path of this process and of those below it, on a machine with one GPU."""
    program = Path(__file__).parent / "bin"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATH", f"{program}{os.pathsep}{os.environ['PATH']}")
        environment.setenv("CUDA_VISIBLE_DEVICES", "0")
        environment.delenv("TRITON_INTERPRET", raising=False)
        environment.delenv(PIPES, raising=False)
        yield
