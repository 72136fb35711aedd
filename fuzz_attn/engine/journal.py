"""Journal: the running case on disk, written before its launch, so that it survives the death of the process."""

from __future__ import annotations

import os
from pathlib import Path


class Journal:
    """One file, kept open, that holds the last text written; opening a file for each case would be slow.

    A text shorter than an earlier one is padded with spaces, so that one system call writes all of it or nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._size = 0

    def write(self, text: bytes) -> None:
        """Replace the text in the journal."""
        padded = text.ljust(self._size)
        self._size = len(padded)
        os.pwrite(self._descriptor, padded, 0)

    def close(self, *, keep: bool) -> None:
        """Close the journal; delete it unless ``keep``."""
        os.close(self._descriptor)
        if not keep:
            self.path.unlink(missing_ok=True)
