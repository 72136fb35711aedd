"""Waiting: says on standard error what a command waits for, and since when."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fuzz_attn.report.plain_text import PIPE_SECONDS, safe, show, whole

FRAME_SECONDS: Final = 0.5


class Waiting:
    """Shows one thing after the other, on a terminal in a line that changes, elsewhere in a line every ten seconds.

    Nothing is shown of what ends sooner. The line is gone after :meth:`stop`.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._every = FRAME_SECONDS if console.is_terminal else PIPE_SECONDS
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self, what: str) -> None:
        """Begin to wait for something, which ends what was waited for before."""
        self.stop()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._show, args=(what, self._stopped), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End waiting, and clear the line."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _show(self, what: str, stopped: threading.Event) -> None:
        started = time.monotonic()
        live = Live(console=self._console, auto_refresh=False, transient=True) if self._console.is_terminal else None
        while not stopped.wait(self._every):
            words = f"{safe(what)}, since {time.monotonic() - started:.0f} s"
            if live is None:
                show(self._console, whole(words))
            else:
                live.start()
                live.update(Text(words, no_wrap=True, overflow="ellipsis"), refresh=True)
        if live is not None:
            live.stop()
