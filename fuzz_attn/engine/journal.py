"""Journal: the running case on disk, written before its launch, so that it survives the death of the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fuzz_attn.errors import OutputError

POSSIBLE_HANG: Final = 1.0
"""A launch that has run for so many seconds when the time limit ends it may be a hang: its journal is kept."""
PAGE: Final = 4096
"""The system writes so many bytes at the start of a file at once, even if the process is killed meanwhile."""


class Journal:
    """A file that holds the last text written, at any time all of it or nothing; spaces may follow the text.

    A text of at most a page is written in place. To replace the file, as for longer texts, makes the file system write
    to the disk at once, which takes a tenth of a case.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next = path.with_suffix(".part")
        self._file: int | None = None
        self._length = 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, text: bytes) -> None:
        """Replace the text in the journal; raises :class:`OutputError` where it cannot be written."""
        try:
            self._write(text)
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _write(self, text: bytes) -> None:
        if self._file is not None and max(len(text), self._length) <= PAGE:
            os.pwrite(self._file, text.ljust(self._length), 0)
        else:
            self._next.write_bytes(text)
            self._next.replace(self.path)
            self._close()
            self._file = os.open(self.path, os.O_WRONLY)
            self._length = 0
        self._length = max(len(text), self._length)

    def close(self, *, keep: bool) -> None:
        """Delete the journal unless ``keep``."""
        self._close()
        if not keep:
            self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
