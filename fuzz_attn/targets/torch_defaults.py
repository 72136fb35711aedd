"""Torch's defaults, the type and the device of what nobody says them of: a target's own hold for the target alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch


class Defaults(NamedTuple):
    """What torch makes tensors of, and where."""

    dtype: torch.dtype
    device: torch.device

    def set(self) -> None:
        """Make torch use them. The CPU is set as no default device: with one, each call to torch is slower."""
        torch.set_default_dtype(self.dtype)
        torch.set_default_device(None if self.device.type == "cpu" else self.device)


def current() -> Defaults:
    """Return what torch uses now."""
    return Defaults(torch.get_default_dtype(), torch.get_default_device())


_of_targets: Defaults | None = None
"""What targets have left behind, where it is not what the harness uses."""


@contextmanager
def of_targets() -> Iterator[None]:
    """Let a target have the defaults that it has set before; those that it sets now end with the context."""
    global _of_targets  # noqa: PLW0603 - torch's defaults are the process's, and so is what targets made of them
    ours = current()
    if _of_targets is not None:
        _of_targets.set()
    try:
        yield
    finally:
        left = current()
        _of_targets = None if left == ours else left
        if left != ours:
            ours.set()
