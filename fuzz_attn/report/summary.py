"""The summary of a run: its numbers for each target, what was refused, and its progress, also while the run goes on.

A run's failures appear as rows, its progress as a line that changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fuzz_attn.backends import kernel_coverage
from fuzz_attn.case import aspect_table
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
from fuzz_attn.engine.listeners.statistics import CountedRefusal, Statistics, Tally
from fuzz_attn.engine.run_folder import POSSIBLE_HANG
from fuzz_attn.oracle.verdict import NOT_REDUCED
from fuzz_attn.report import mask_gaps
from fuzz_attn.report.printing import PIPE_SECONDS, count, safe, show, whole

MOST_COMBINATIONS: Final = 4
MOST_CHARACTERS: Final = 200
UNKNOWN: Final = "not reduced"
EVERY_CASE: Final = "every case"
"""What is said of refusals of which nothing is known, and of those that need nothing."""


def render_refusals(refusals: tuple[CountedRefusal, ...]) -> RenderableType:
    """Return what was refused, for each place that refuses: its cases, what they have in common, the message, the line.

    Paths and lines of code are never wrapped.
    """
    width = len(str(refusals[0].cases)) + 1
    lines: list[RenderableType] = [Text("Refused, so not judged")]
    for each in refusals:
        table = Table.grid(padding=(0, 1))
        table.add_column(justify="right", no_wrap=True, min_width=width)
        table.add_column(overflow="fold")
        table.add_row(str(each.cases), Text(combinations_in_words(each)))
        table.add_row("", Text(_message(each)))
        place = _place_of_refusal(each).splitlines()
        lines += [table, *(whole(f"{'':{width}} {line.strip()}") for line in place)]
    return Group(*lines)


def combinations_in_words(refused: CountedRefusal) -> str:
    """Return the refused combinations: ``head size 24 with sinks; fp8 output``."""
    words = [_in_words(combination) for combination in refused.combinations]
    more = f"; {len(words) - MOST_COMBINATIONS} more" if len(words) > MOST_COMBINATIONS else ""
    return "; ".join(words[:MOST_COMBINATIONS]) + more if words else UNKNOWN


def _in_words(combination: tuple[str, ...]) -> str:
    if combination[-1:] == (NOT_REDUCED,):
        return ", ".join([" with ".join(combination[:-1]), NOT_REDUCED][len(combination) == 1 :])
    return " with ".join(combination) or EVERY_CASE


def _message(refused: CountedRefusal) -> str:
    refusal = refused.refusal
    text = f"{refusal.error}: {refusal.message}" if refusal.message else refusal.error
    shown = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ..."
    return f"does not compile: {shown}" if refusal.stage == "compile" else shown


def _place_of_refusal(refused: CountedRefusal) -> str:
    return f"{refused.refusal.location}\n{refused.refusal.source}".strip()


Row: TypeAlias = tuple[str, str | Text]

HOW_IT_WENT: Final = (
    *("kernels", "compiler", "kernels compiled", "shrinking"),
    *("features", "like serving", "relations", "contracts", "largest err / bound"),
)
"""Rows of the summary that say how a run went, not what it found or left out."""


def progress_line(statistics: Statistics, time_left: float | None, gained: int = 0) -> str:
    """Return the progress of a run: cases, rate, coverage with what was gained lately, failures, time left."""
    if not statistics.backend:
        return "loading the target"
    rate = statistics.cases / statistics.seconds if statistics.seconds > 0 else 0.0
    words = [count(statistics.cases, "case"), f"{rate:.1f} cases/s", count(len(statistics.compile_keys), "compile key")]
    if statistics.outcomes:
        words.append(f"{count(statistics.outcomes, 'mask outcome')} (+{gained})")
    words.append(count(len(statistics.counterexamples), "failure"))
    if statistics.refused:
        words.append(f"{statistics.refused} refused")
    if statistics.shrinking_now:
        words.append(f"shrinking ({count(statistics.shrinking, 'attempt')})")
    if time_left is not None:
        words.append(f"{max(0.0, time_left):.0f} s left")
    return ", ".join(words)


def features_line(statistics: Statistics) -> str:
    """Return the share of each feature in the cases, the most frequent first."""
    most_first = sorted(statistics.features.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {number / max(1, statistics.cases):.0%}" for name, number in most_first)


def served_line(statistics: Statistics) -> str:
    """Return how many cases have the sizes of a served model and a batch that a scheduler makes."""
    share = statistics.served / max(1, statistics.cases)
    return f"{count(statistics.served, 'case')} ({share:.0%}), in the sizes of the model and in the batch"


def render(statistics: Statistics, *, everything: bool = False) -> RenderableType:
    """Return the summary of one target, all shards together; ``everything`` adds how the run went."""
    table = Table(show_header=False, box=None)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for what, words in (*_numbers(statistics), *_shares(statistics)):
        if everything or what not in HOW_IT_WENT:
            table.add_row(what, words)
    refused = [render_refusals(statistics.refusals)] if statistics.refusals else []
    return Group(whole(f"Summary of {statistics.target}", "bold"), table, *refused)


def _numbers(statistics: Statistics) -> Iterator[Row]:
    shims = f" (shims: {', '.join(statistics.shims)})" if statistics.shims else ""
    rate = statistics.cases / statistics.seconds if statistics.seconds else 0.0
    keys = len(statistics.compile_keys)
    yield "backend", f"{statistics.backend}{shims}"
    if statistics.unsupported:
        yield "unsupported", _unsupported(statistics)
    yield "seed", f"{statistics.seed}, split over {count(statistics.shards, 'shard')}"
    yield "cases", f"{statistics.cases} in {statistics.seconds:.0f} s, {rate:.1f} cases/s"
    yield "compile keys", f"{keys}, {statistics.cases / max(1, keys):.1f} cases each"
    if statistics.configurations:
        yield "configurations", kernel_coverage.covered(statistics.configurations)
    if statistics.kernels_ahead or statistics.kernels_kept:
        yield "kernels", _kernels_ahead(statistics)
        yield "compiler", _waits(statistics)
    elif statistics.kernels_compiled or statistics.kernels_loaded:
        yield "kernels compiled", _kernels(statistics)
    if statistics.shrinking:
        yield "shrinking", count(statistics.shrinking, "attempt")
    if statistics.refused:
        share = f"{statistics.judged_share:.0%} of all cases were judged"
        yield "refused", f"{count(statistics.refused, 'case')}, not among the cases above; {share}; listed below"
    if statistics.deaths:
        yield "worker deaths", str(statistics.deaths)
    if statistics.excused:
        words = "failed in a used process and passed in a fresh one; from the third on this is looked into"
        yield "not repeated", f"{count(statistics.excused, 'case')} {words}"
    if statistics.lost:
        yield "lost failures", Text(f"{statistics.lost}: no row of the table has them", style="bold red")
    if statistics.unfinished_seconds >= POSSIBLE_HANG:
        yield "unfinished", _unfinished(statistics)
    failures = len(statistics.counterexamples)
    known = f", and {len(statistics.known)} known" if statistics.known else ""
    yield "failures", Text(f"{failures}{known}", style="bold red" if failures else "bold green")


def _kernels(statistics: Statistics) -> str:
    """Return the number of kernels, compiled and from the cache, and of cases for each."""
    kernels = statistics.kernels_compiled + statistics.kernels_loaded
    cases = statistics.cases + statistics.shrinking
    cached = f", {statistics.kernels_loaded} more from Triton's cache" if statistics.kernels_loaded else ""
    return f"{statistics.kernels_compiled}{cached}, {cases / kernels:.1f} cases each"


def _kernels_ahead(statistics: Statistics) -> str:
    """Return the number of kernels of a run with a compile stage, and of cases for each."""
    ahead, kept, judging = statistics.kernels_ahead, statistics.kernels_kept, statistics.kernels_compiled
    kernels = ahead + kept + judging
    cases = (statistics.cases + statistics.shrinking) / kernels
    compiled = f"{ahead + judging} compiled ({ahead} ahead of their cases, {judging} while judging)"
    return f"{kernels}: {compiled}, {kept} by earlier runs; {cases:.1f} cases each"


def _waits(statistics: Statistics) -> str:
    """Return where the time of a run with a compile stage went, and the cases dropped because they needed a kernel.

    What is left of the time went to drawing and reporting.
    """
    time = max(1e-9, statistics.seconds * statistics.shards)
    judging = statistics.judging - statistics.compiling
    judged, waited, compiling = (f"{part / time:.1%}" for part in (judging, statistics.waited, statistics.compiling))
    dropped = count(statistics.not_compiled, "case")
    return (
        f"workers judged {judged} of the time, waited {waited} for kernels and compiled {compiling}; "
        f"{dropped} dropped that needed another kernel"
    )


def _unfinished(statistics: Statistics) -> str:
    launches = count(statistics.unfinished, "launch", "launches")
    ran = f"had run for {statistics.unfinished_seconds:.0f} s at the time limit"
    return f"{launches} {ran}; journal-*.json holds the cases"


def _unsupported(statistics: Statistics) -> str:
    """Return what the backend could not run, with the number of cases and where they were judged."""
    judged = "judged in the interpreter" if statistics.cases else "not judged"
    total = sum(statistics.unsupported.values())
    return f"{count(total, 'case')}, {judged}: {'; '.join(statistics.unsupported)}"


def _covered(statistics: Statistics) -> str:
    if not statistics.masks:
        return "none: only the simulator records masks, and only those of Triton kernels"
    without = ", without the cases that the simulator cannot run" * bool(statistics.unsupported)
    return f"{mask_gaps.summary_line(statistics.masks, statistics.target)}{without}"


def _relations(counts: dict[str, int]) -> str:
    """Return the number of cases of each relation, the rarest last."""
    most_first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    listed = ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in most_first)
    return f"{count(sum(counts.values()), 'case')}: {listed}"


def _shares(statistics: Statistics) -> Iterator[Row]:
    if not statistics.cases:
        return
    ratios = ", ".join(f"{dtype} {ratio:.3f}" for dtype, ratio in sorted(statistics.ratios.items()))
    yield "features", features_line(statistics)
    yield "like serving", served_line(statistics)
    if statistics.not_drawn:
        yield "not drawn", "\n".join(aspect_table.sentences(statistics.not_drawn))
    if statistics.unexercised:
        yield "not exercised", "\n".join(statistics.unexercised)
    if statistics.relations:
        yield "relations", _relations(statistics.relations)
    if statistics.contracts:
        listed = ", ".join(f"{number} {what}" for what, number in sorted(statistics.contracts.items()))
        yield "contracts", f"{count(sum(statistics.contracts.values()), 'unusual call')}: {listed}"
    yield "largest err / bound", ratios or "none measured"
    yield "mask coverage", _covered(statistics)


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
        """Print a row: seconds since the start, what happened, and the first line of the words, which is never cut."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        row = whole(f"{seconds:6.1f} s  ")
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
