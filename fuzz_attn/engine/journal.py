"""Journal: the case that is running, on disk before it is launched, so that the death of a process leaves it behind."""

from __future__ import annotations

from pathlib import Path


class Journal:
    """A file that holds the last text written, all of it or nothing at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next = path.with_suffix(".part")
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, text: bytes) -> None:
        """Replace what the journal holds."""
        self._next.write_bytes(text)
        self._next.replace(self.path)

    def close(self, *, keep: bool) -> None:
        """Remove the journal unless what it holds is still of use."""
        if not keep:
            self.path.unlink(missing_ok=True)
