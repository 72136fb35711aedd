"""Journal: the case that is running, on disk before it is launched, so that the death of a process leaves it behind."""

from __future__ import annotations

import os
from pathlib import Path


class Journal:
    """One file, kept open, that holds the last text written; opening a file for each case would be slow.

    Spaces follow a text that is shorter than one before it: one call to the system then writes all of it, or nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._size = 0

    def write(self, text: bytes) -> None:
        """Replace what the journal holds."""
        padded = text.ljust(self._size)
        self._size = len(padded)
        os.pwrite(self._descriptor, padded, 0)

    def close(self, *, keep: bool) -> None:
        """Close the journal, and remove it unless what it holds is still of use."""
        os.close(self._descriptor)
        if not keep:
            self.path.unlink(missing_ok=True)
