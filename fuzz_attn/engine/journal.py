"""Journal: the running case on disk, written before its launch, so that it survives the death of the process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

POSSIBLE_HANG: Final = 1.0
"""A launch that has run for so many seconds when the time limit ends it may be a hang: its journal is kept."""


class Journal:
    """A file that holds the last text written, at any time all of it or nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next = path.with_suffix(".part")
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, text: bytes) -> None:
        """Replace the text in the journal."""
        self._next.write_bytes(text)
        self._next.replace(self.path)

    def close(self, *, keep: bool) -> None:
        """Delete the journal unless ``keep``."""
        if not keep:
            self.path.unlink(missing_ok=True)
