"""Torch's defaults, the type and the device of what nobody says them of: a target's own hold for the target alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch


class Defaults(NamedTuple):
    """What torch makes tensors of, and where."""

    dtype: torch.dtype
    device: torch.device

    def set(self) -> None:
        """Make torch use them. The CPU is set as no default device: with one, each call to torch is slower."""
        now = current()
        if self.dtype != now.dtype:
            torch.set_default_dtype(self.dtype)
        if self.device != now.device:
            torch.set_default_device(None if self.device.type == "cpu" else self.device)


def current() -> Defaults:
    """Return what torch uses now."""
    return Defaults(torch.get_default_dtype(), torch.get_default_device())


_TARGETS: Final[list[Defaults]] = []
"""What targets have left behind, if one was called or loaded before."""


@contextmanager
def of_targets() -> Iterator[None]:
    """Let a target have the defaults that it has set before; those that it sets now end with the context."""
    ours = current()
    for defaults in _TARGETS:
        defaults.set()
    try:
        yield
    finally:
        _TARGETS[:] = [current()]
        ours.set()
