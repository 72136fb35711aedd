"""State of the process that a target may change: Python's limits, folder, streams, warnings, collector and builtins."""

from __future__ import annotations

import builtins
import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
