"""PositionFile: which case and mutant a worker is at, in a file that survives the worker's death."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_FORMAT = struct.Struct("<qq")
NO_MUTANT = -1


class PositionFile:
    """A file with two numbers: that of the case in the stream and that of the mutant in its batch, both from 0."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT)

    def write(self, case: int, mutant: int) -> None:
        """Replace the two numbers."""
        os.pwrite(self._descriptor, _FORMAT.pack(case, mutant), 0)

    def read(self) -> tuple[int, int]:
        """Return the two numbers; ``NO_MUTANT`` where nothing was written."""
        written = os.pread(self._descriptor, _FORMAT.size, 0)
        case, mutant = _FORMAT.unpack(written) if written else (NO_MUTANT, NO_MUTANT)
        return int(case), int(mutant)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
