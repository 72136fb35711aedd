"""State of the process that a target may change: the recursion limit and the current folder."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def restored_process_state() -> Iterator[None]:
    """Restore what a target changes in its process, so that it does not disturb the harness."""
    limit, folder = sys.getrecursionlimit(), _current_folder()
    try:
        yield
    finally:
        if sys.getrecursionlimit() != limit:
            sys.setrecursionlimit(limit)
        if _current_folder() != folder:
            with contextlib.suppress(OSError):  # the folder was deleted
                os.chdir(folder)


def _current_folder() -> str:
    """Return the current folder; an empty string if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""
