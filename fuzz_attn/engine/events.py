"""Events: what a campaign reports while it runs, as plain data. Listeners print, log, count and save them.

A shard emits events in the order in which they happen. ``shard`` is its number, from 0. ``failure`` is the number of a
failure within its shard, from 0, so that (shard, failure) names one failure of a run while it is confirmed and shrunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from fuzz_attn.backends.kernel_coverage import KernelConfigurations, Mask
from fuzz_attn.case.plain import Plain, Positive, Seconds, Whole
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.orders import Order, Ready
from fuzz_attn.oracle.verdict import Refusal, Verdict

WHOLE_RUN: Final = -1
"""The shard number of an event that concerns the whole run."""

Signal: TypeAlias = Annotated[int, Meta(ge=0, le=127)]
"""The number of a signal, which is a part of an exit status; 0 is none."""

Which: TypeAlias = tuple[Whole, Whole]
"""A failure of a run: its shard and its number there. No other one has them, while a file's name may be used again."""

Phase: TypeAlias = Literal["saved", "search", "confirm", "shrink"]
"""Why a case was judged. Saved counterexamples are played first, then cases are drawn, failures confirmed, shrunk."""
START_PART: Final = 0.25
"""So much of the time limit starting may take: torch, the target and a device. On a slow machine it takes longer."""


class Part(Plain, frozen=True):
    """One of the runs, ``number`` of ``of``, that share the shards of one large run with the same seed."""

    number: Positive = 1
    of: Positive = 1


ONLY_PART: Final = Part()


class Started(Plain, frozen=True, tag_field="event", tag="started"):
    """A run begins; ``time`` is in seconds since 1970. None is no limit.

    ``versions`` are those of Python and of packages; ``system`` describes the machine.
    ``max_cases`` is the limit of all parts together.
    """

    target: str
    seed: int
    workers: Whole
    time: Seconds
    max_time: Seconds | None = None
    max_cases: Whole | None = None
    part: Part = ONLY_PART
    versions: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it for each struct
    system: str = ""


class WorkerReady(Plain, frozen=True, tag_field="event", tag="worker_ready"):
    """A worker has loaded the target."""

    shard: Whole
    ready: Ready


class CaseJudged(Plain, frozen=True, tag_field="event", tag="case_judged"):
    """A case was launched and judged. ``verdicts`` holds every failure, or the oracle's verdict of a pass.

    Of the ``seconds``, ``compiling`` were the compiler's. ``backend`` names the one that judged it, where that is
    another than the worker's (:class:`fuzz_attn.engine.isolated_worker.Explainer`).
    """

    shard: Whole
    phase: Phase
    order: Order
    verdicts: tuple[Verdict, ...]
    seconds: Seconds
    masks: tuple[Mask, ...] = ()
    compiled: Whole = 0
    loaded: Whole = 0
    compiling: Seconds = 0.0
    backend: str = ""
    configurations: tuple[KernelConfigurations, ...] = ()


class CaseRefused(Plain, frozen=True, tag_field="event", tag="case_refused"):
    """A case was refused, so there was nothing to judge."""

    shard: Whole
    phase: Phase
    order: Order
    refusal: Refusal


class RefusalReduced(Plain, frozen=True, tag_field="event", tag="refusal_reduced"):
    """The smallest refused combination was found; ``combination`` names its features and sizes in words.

    It is empty where nothing that a case can have is accepted, and ends with "not reduced fully" where the time was up
    before everything else of the case had been left out.
    """

    shard: Whole
    refusal: Refusal
    combination: tuple[str, ...]


class CaseUnsupported(Plain, frozen=True, tag_field="event", tag="case_unsupported"):
    """The backend could not run a case; ``operation`` says what it cannot run, and where the source has it.

    ``instead`` names the backend that judged the case; if it is empty, there is no verdict.
    """

    shard: Whole
    phase: Phase
    order: Order
    operation: str
    instead: str = ""


class CaseUnfinished(Plain, frozen=True, tag_field="event", tag="case_unfinished"):
    """The time was up while a case was running."""

    shard: Whole
    order: Order
    seconds: Seconds


class CaseNotCompiled(Plain, frozen=True, tag_field="event", tag="case_not_compiled"):
    """A case was not judged because one of its kernels was not compiled. It is counted, but not in the log."""

    shard: Whole


class RoundCompiled(Plain, frozen=True, tag_field="event", tag="round_compiled"):
    """The kernels of a round are compiled ahead of its cases; ``loaded`` of them were compiled by an earlier run.

    ``failed`` could not be compiled. The kernels are not ``complete`` if they could not be found out for many cases.
    ``seconds`` is the time of both.
    """

    shard: Whole
    round: Whole
    compiled: Whole
    loaded: Whole
    failed: Whole
    complete: bool
    seconds: Seconds


class FailureFound(Plain, frozen=True, tag_field="event", tag="failure_found"):
    """A failure that is none of those known so far; it is saved in ``path``.

    Its status is ``open`` if it is new. A saved one that still fails is ``open`` or ``known``; a ``fixed`` one that
    fails again is a regression. A ``saved`` one has a file from before the run. One that is not ``followed`` is saved
    as it was seen, because the shard follows too many others. ``seconds`` is the time since the shard began to fuzz.
    """

    shard: Whole
    failure: Whole
    counterexample: Counterexample
    path: str
    seconds: Seconds = 0.0
    saved: bool = False
    followed: bool = True


class FailureChanged(Plain, frozen=True, tag_field="event", tag="failure_changed"):
    """A failure was confirmed, classified or shrunk further; ``path`` is its file now, ``done`` after the last change.

    ``same_as`` is the name of an earlier failure (:func:`name_of`), and ``same`` says which one it is, where this one
    turned out to be the same bug; its file is gone then.
    """

    shard: Whole
    failure: Whole
    counterexample: Counterexample
    path: str
    done: bool = False
    same_as: str = ""
    same: Which | None = None


class SavedPassed(Plain, frozen=True, tag_field="event", tag="saved_passed"):
    """A saved counterexample passes. That is unexpected of one that is not ``fixed``."""

    shard: Whole
    counterexample: Counterexample
    path: str


class FailureSeenAgain(Plain, frozen=True, tag_field="event", tag="failure_seen_again"):
    """Another case showed a failure; in a merged log, several ``cases`` at once.

    ``path`` is its name (:func:`name_of`) when it was learnt, and ``which`` says which one it is.
    """

    shard: Whole
    path: str
    cases: Positive = 1
    which: Which | None = None


class CaseExcused(Plain, frozen=True, tag_field="event", tag="case_excused"):
    """A case failed in a process that had judged others, and passed in a fresh one, or the time was up before that.

    It is counted and makes no failure: the machine may be slow, or somebody ended the process. Several of them make a
    failure that depends on earlier cases. If it was ``judged``, its event :class:`CaseJudged` has the failed verdict.
    """

    shard: int
    verdict: Verdict
    judged: bool = False


class WorkerLost(Plain, frozen=True, tag_field="event", tag="worker_lost"):
    """A worker process died or was ended; ``reason`` in words."""

    shard: Whole
    reason: str


class Note(Plain, frozen=True, tag_field="event", tag="note"):
    """Something that a reader of the summary must know, but that is no failure."""

    shard: Whole
    text: str


class Finished(Plain, frozen=True, tag_field="event", tag="finished"):
    """A shard, or with ``shard`` :data:`WHOLE_RUN` the run, has ended; ``error`` says why it could not go on, if so.

    ``stopped_by`` is the number of the signal that ended the run, 0 if none did. ``waited`` are the seconds that a
    shard waited for the compile stage.
    """

    shard: Whole
    seconds: Seconds
    error: str = ""
    stopped_by: Signal = 0
    waited: Seconds = 0.0


Event: TypeAlias = (
    Started
    | WorkerReady
    | CaseJudged
    | CaseRefused
    | RefusalReduced
    | CaseUnsupported
    | CaseUnfinished
    | CaseNotCompiled
    | RoundCompiled
    | FailureFound
    | FailureChanged
    | SavedPassed
    | FailureSeenAgain
    | CaseExcused
    | WorkerLost
    | Note
    | Finished
)
StageEvent: TypeAlias = RoundCompiled | CaseRefused | RefusalReduced
"""What the compile stage tells of a run."""
Emit: TypeAlias = Callable[[Event], None]
Told: TypeAlias = FailureFound | FailureChanged
"""What a shard tells the others: a failure that it begins to follow, or as it is in the end."""
News: TypeAlias = Callable[[], Sequence[Told]]
"""Returns what the other shards of the run have found or changed since the last call; called between cases."""


def name_of(shard: int, failure: int, path: str) -> str:
    """Return what names a failure in events: the path of its file, or words for one that could not be saved."""
    return path or f"failure {failure} of worker {shard}, which could not be saved"


def ignore(event: Event) -> None:
    """Do nothing with an event."""


def all_of(*listeners: Emit) -> Emit:
    """Return a listener that passes each event to all of these, in this order."""

    def emit(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return emit


def no_news() -> Sequence[Told]:
    """Return nothing: the news of a run with one shard."""
    return ()


def time_to_fuzz(max_time: float, starting: float) -> float:
    """Return how many seconds of a limit are left where starting took some; beyond a quarter they do not count."""
    return max_time - min(max(0.0, starting), START_PART * max_time)
