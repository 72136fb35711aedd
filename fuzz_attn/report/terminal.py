"""Terminal: shows a run while it goes on, and what a command waits for.

A run's failures appear as rows, its progress as a line that changes.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from fuzz_attn.engine.events import (
    CaseExcused,
    Event,
    FailureChanged,
    FailureFound,
    Note,
    SavedPassed,
    Started,
    WorkerReady,
    time_to_fuzz,
)
from fuzz_attn.engine.listeners.results import pass_in_words
from fuzz_attn.engine.listeners.statistics import Statistics, Tally
from fuzz_attn.report.printing import PIPE_SECONDS, count, safe, show, whole
from fuzz_attn.report.summary import features_line, progress_line

WAITING_FRAME_SECONDS: Final = 0.5


class Waiting:
    """Shows one thing after the other, on a terminal in a line that changes, elsewhere in a line every ten seconds.

    Nothing is shown of what ends sooner. The line is gone after :meth:`stop`.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._every = WAITING_FRAME_SECONDS if console.is_terminal else PIPE_SECONDS
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


FRAME_SECONDS: Final = 0.25
STYLES: Final = {
    "found": "bold red",
    "seen": "red",
    "known": "yellow",
    "shrunk": "red",
    "same": "dim",
    "note": "yellow",
}


class Terminal:
    """Prints the events of a run; call it with each, and call :meth:`tick` several times a second.

    On a terminal the last lines change. Elsewhere a line of progress is printed every ten seconds. The mask outcomes
    gained are those since the line before, on a terminal those of the last ten to twenty seconds.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tally = Tally()
        self._max_time: float | None = None
        self._began: float | None = None
        self._asked = time.monotonic()
        self._headline = ""
        self._told: set[str] = set()
        self._seen: set[tuple[int, int]] = set()
        self._shown = self._compared = time.monotonic()
        self._outcomes = self._gained = 0
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Print a row for a failure or a note, and keep the counts."""
        self._tally(event)
        match event:
            case Started():
                self._max_time, self._asked = event.max_time, time.monotonic()
                with_seed = f"with seed {event.seed}, {count(event.workers, 'worker')}"
                self._headline = f"Fuzzing {event.target} {with_seed}"
            case WorkerReady():
                self._show_headline()
                if self._began is None:
                    self._began = time.monotonic()
                    if self._max_time is not None:
                        self._max_time = time_to_fuzz(self._max_time, self._began - self._asked)
            case FailureFound() if event.counterexample.status == "known":
                self._row("known", event.path)
            case FailureFound(followed=False):
                self._seen.add((event.shard, event.failure))
                self._row("seen", f"{event.counterexample.verdict.what}, not followed: {event.path}")
            case FailureFound():
                verdict = event.counterexample.verdict
                self._row("found", f"{verdict.what}: {verdict.message}")
            case FailureChanged(same_as=same_as) if same_as:
                self._row("same", f"it is the failure in {same_as}")
            case FailureChanged(done=True) if self._is_told(event):
                self._row("shrunk", event.path or event.counterexample.signature)
            case SavedPassed() if event.counterexample.status != "fixed":
                self._row("note", pass_in_words(event))
            case Note():
                self._tell(event.text)
            case CaseExcused():
                self._tell(f"a case failed that passes in a fresh process: {event.verdict.message}")

    def _is_told(self, event: FailureChanged) -> bool:
        """Return whether the end of a failure has a row: not of a known one, nor of one that was only seen."""
        return event.counterexample.status != "known" and (event.shard, event.failure) not in self._seen

    def _tell(self, text: str) -> None:
        """Print a note that no worker has told before."""
        if text not in self._told:
            self._told.add(text)
            self._row("note", text)

    def _show_headline(self) -> None:
        """Print what is fuzzed, once a worker is ready or takes long: the error of a bad target is the only line."""
        if self._headline:
            show(self._console, whole(self._headline))
            self._headline = ""

    def _row(self, what: str, words: str) -> None:
        """Print a row: seconds since the start, what happened, and the first line of the words."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        row = Text(f"{seconds:6.1f} s  ", no_wrap=True, overflow="ignore" if self._live is None else "ellipsis")
        row.append(f"{what:7}", STYLES[what]).append(safe(words.partition("\n")[0]))
        show(self._console, row)

    def tick(self) -> None:
        """Show the progress, if it is time."""
        now = time.monotonic()
        if now - self._shown < (PIPE_SECONDS if self._live is None else FRAME_SECONDS):
            return
        self._shown = now
        if self._live is None or self._began is not None:
            self._show_headline()
        if self._live is None:
            show(self._console, whole(self._progress(self._tally.statistics())))
        else:
            self._live.update(self._lines(), refresh=True)

    def _progress(self, statistics: Statistics) -> str:
        left = self._max_time
        if left is not None and self._began is not None:
            left -= time.monotonic() - self._began
        return progress_line(statistics, left, self._gain(statistics.outcomes))

    def _gain(self, outcomes: int) -> int:
        """Return the mask outcomes gained since the last line of a pipe; on a terminal, in ten to twenty seconds."""
        if self._shown - self._compared >= PIPE_SECONDS:
            self._compared, self._gained, self._outcomes = self._shown, outcomes - self._outcomes, outcomes
            return self._gained
        return self._gained + outcomes - self._outcomes

    def _lines(self) -> RenderableType:
        statistics = self._tally.statistics()
        progress, features = self._progress(statistics), features_line(statistics)
        lines = f"{progress}\n{features}" if features else progress
        return Text(lines, no_wrap=True, overflow="ellipsis")
