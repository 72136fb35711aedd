"""Process state: what a target changes of its process, torch's defaults among it, is kept from everything else."""

from __future__ import annotations

import builtins
import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from fuzz_attn.denormals import flushes_denormals


@contextmanager
def restored_process_state() -> Iterator[None]:
    """Restore what a target changes in its process, so that it does not disturb the harness.

    Names that a target adds to the builtins stay: its modules may need them.
    """
    limit, folder, collects = sys.getrecursionlimit(), _current_folder(), gc.isenabled()
    streams, filters = (sys.stdin, sys.stdout, sys.stderr), list(warnings.filters)
    names = vars(builtins)
    own = names.copy()
    try:
        yield
    finally:
        if names != own:
            names.update(own)  # first, because what follows calls some of them
        if sys.getrecursionlimit() != limit:
            sys.setrecursionlimit(limit)
        if _current_folder() != folder:
            with contextlib.suppress(OSError):  # the folder was deleted
                os.chdir(folder)
        if gc.isenabled() != collects:
            (gc.enable if collects else gc.disable)()
        sys.stdin, sys.stdout, sys.stderr = streams
        if warnings.filters != filters:
            _filter_warnings(filters)


def _filter_warnings(filters: list[Any]) -> None:
    """Set the filters of warnings."""
    warnings.resetwarnings()  # also forgets what was decided by other filters
    warnings.filters.extend(filters)  # type: ignore[attr-defined] # it is a list


def _current_folder() -> str:
    """Return the current folder; an empty string if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


class Defaults(NamedTuple):
    """What torch does where a call does not say it.

    ``dtype`` and ``device`` are those of a new tensor. ``deterministic`` and ``only_warns`` are the arguments of
    ``torch.use_deterministic_algorithms``.
    """

    dtype: torch.dtype
    device: torch.device
    threads: int
    deterministic: bool
    only_warns: bool
    flushes_denormals: bool
    grad: bool

    def set(self) -> None:
        """Set all in torch. The CPU is set as None, because an explicit default device slows every call down."""
        torch.set_default_dtype(self.dtype)
        torch.set_default_device(None if self.device.type == "cpu" else self.device)
        torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.only_warns)
        torch.set_flush_denormal(self.flushes_denormals)
        torch.set_grad_enabled(self.grad)


def current() -> Defaults:
    """Return the defaults that torch uses now."""
    return Defaults(
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        flushes_denormals(),
        torch.is_grad_enabled(),
    )


_left_by_targets: Defaults | None = None
"""The defaults that targets have set, None where they are the harness's own."""


@contextmanager
def target_defaults() -> Iterator[None]:
    """Restore the defaults that targets have set before, and on exit the harness's own.

    A target that stays in torch's inference mode leaves it, too: this mode ends here as it began.
    """
    global _left_by_targets  # noqa: PLW0603 - torch's defaults belong to the process, and so do a target's changes to them
    own = current()
    with torch.inference_mode(torch.is_inference_mode_enabled()):
        torch.set_grad_enabled(own.grad)  # the line above switches it on
        if _left_by_targets is not None:
            _left_by_targets.set()
        try:
            yield
        finally:
            left = current()
            _left_by_targets = None if left == own else left
            if left != own:
                own.set()
