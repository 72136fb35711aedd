"""PrintedOutput: the end of what a worker prints, in a bounded amount of memory however much it prints."""

from __future__ import annotations

import os
import select
import threading
from typing import IO, Final

KEPT_BYTES: Final = 2**20
"""How much of the output is kept."""
_CHUNK_BYTES: Final = 2**16
"""What a pipe can hold on Linux."""
_LOOK_MILLISECONDS: Final = 1000
"""How often the thread looks whether it is to end, while something that the worker left behind keeps the pipe open."""


class PrintedOutput:
    """The output of a process and its forks, which write to :attr:`writer`, the end of a pipe.

    The process that starts the other one closes its own copy of the writer. The output ends when the last copy is
    closed.

    A thread reads it, so that the process can go on printing whatever this process waits for. A process that prints
    faster than the thread reads has to wait, as it would for a terminal.
    """

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        self.writer: IO[bytes] = os.fdopen(writer, "wb", buffering=0)
        os.set_blocking(self._reader, False)
        self._kept = bytearray()
        self._open = True
        self._lock = threading.Lock()
        threading.Thread(target=self._read_on, name="output of a worker", daemon=True).start()

    def __len__(self) -> int:
        """Return how many bytes are kept at the moment."""
        return len(self._kept)

    def take(self) -> str:
        """Return what is kept, up to the last character that was printed, and forget it."""
        with self._lock:
            self._read()
            kept = self._kept.decode(errors="replace")
            self._kept.clear()
        return kept

    def close(self) -> None:
        """Read no more: a process that still has the other end gets an error when it prints."""
        self._open = False

    def _read_on(self) -> None:
        """Read until every process has closed its end; only this thread closes the pipe, which it waits for."""
        arrived = select.poll()
        arrived.register(self._reader, select.POLLIN)
        while self._open:
            if arrived.poll(_LOOK_MILLISECONDS):
                with self._lock:
                    self._read()
        with self._lock:
            os.close(self._reader)

    def _read(self) -> None:
        """Keep what has arrived."""
        if not self._open:
            return
        try:
            chunk = os.read(self._reader, _CHUNK_BYTES)
        except BlockingIOError:
            return
        self._open = bool(chunk)
        self._kept += chunk
        del self._kept[:-KEPT_BYTES]
