"""Torch's default dtype and device: isolates a target's changes to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch


class Defaults(NamedTuple):
    """The dtype and the device that torch gives to a new tensor where neither is named."""

    dtype: torch.dtype
    device: torch.device

    def set(self) -> None:
        """Set both in torch. The CPU is set as None, because an explicit default device slows every call down."""
        torch.set_default_dtype(self.dtype)
        torch.set_default_device(None if self.device.type == "cpu" else self.device)


def current() -> Defaults:
    """Return the defaults that torch uses now."""
    return Defaults(torch.get_default_dtype(), torch.get_default_device())


_left_by_targets: Defaults | None = None
"""The defaults that targets have set, None where they are the harness's own."""


@contextmanager
def target_defaults() -> Iterator[None]:
    """Restore the defaults that targets have set before, and on exit the harness's own."""
    global _left_by_targets  # noqa: PLW0603 - torch's defaults belong to the process, and so do a target's changes to them
    own = current()
    if _left_by_targets is not None:
        _left_by_targets.set()
    try:
        yield
    finally:
        left = current()
        _left_by_targets = None if left == own else left
        if left != own:
            own.set()
