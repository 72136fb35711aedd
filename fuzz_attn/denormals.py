"""Denormal numbers: a CPU may be told to flush them to zero, which changes what a launch computes and no GPU does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_denormals() -> Iterator[None]:
    """Let the CPU keep denormal numbers; a target, or a library that it loads, may have told it to flush them."""
    if not flushes_denormals():
        yield
        return
    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(True)


def flushes_denormals() -> bool:
    """Return whether this thread flushes denormal numbers to zero."""
    return _half(sys.float_info.min) == 0.0


def _half(number: float) -> float:
    return number / 2
