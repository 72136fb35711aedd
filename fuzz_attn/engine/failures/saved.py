"""Saved counterexamples, which every run plays first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn import counterexamples
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.events import FailureChanged, Note, Phase, SavedPassed
from fuzz_attn.engine.failures.confirmation import Launches, order_of
from fuzz_attn.engine.failures.life import FailureLives
from fuzz_attn.engine.failures.triage import class_of, failures_of, split, trigger_in
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.errors import CounterexampleError
from fuzz_attn.operations.registry import AnyDomain, operation_of
from fuzz_attn.oracle.verdict import Verdict

NOT_PROMISED: Final = "the target does not promise {}"
REFUSES: Final = "the target or the compiler refuses the case"
UNSUPPORTED: Final = "this backend cannot run the case"
NOT_PLAYED: Final = "the run ended before it had played {} of {} saved counterexamples"
MOST_TRIES: Final = 20
"""How often a flaky failure runs before it counts as passing."""


@dataclass(frozen=True)
class Failing:
    """A failing answer, and the orders that ran before it in the same process."""

    order: Order
    answer: Answer
    before: tuple[Order, ...] = ()


class Uncovered:
    """Failing answers that no file covers, those on one order with the same failures once: a flaky case runs often."""

    def __init__(self) -> None:
        self._first: dict[tuple[Order, tuple[str, ...]], Failing] = {}

    @property
    def all(self) -> tuple[Failing, ...]:
        """All of them, in the order in which they came."""
        return tuple(self._first.values())

    def add(self, failing: Failing) -> None:
        """Add an answer unless it is there."""
        classes = tuple(map(class_of, failures_of(failing.answer)))
        self._first.setdefault((failing.order, classes), failing)

    def pop(self) -> Failing | None:
        """Remove and return the first one, None if there is none."""
        return self._first.pop(next(iter(self._first))) if self._first else None


@dataclass(frozen=True)
class Played:
    """A counterexample that was run again: the answer on its case, and what else failed.

    A file covers the class of failure that it has. ``own`` are the verdicts of that class, and ``others`` all failures
    of other classes: of the case, of the cases before it, and of tries that failed in another way.
    """

    answer: Answer
    own: tuple[Verdict, ...] = ()
    others: tuple[Failing, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.own and not self.others


def play_saved(shard: Launches, lives: FailureLives, files: Sequence[Path], domain: AnyDomain) -> None:
    """Play counterexamples and report each; those that fail are known from then on.

    One that the target refuses, or that its domain does not promise, is reported as such. What fails in another way
    than a file says is a new failure, whatever the status of the file: it is followed once all files have been played,
    because another file may have it. If the time is up before that, it is saved as it was seen, and a note counts the
    files that were not played.
    """
    uncovered, launches = Uncovered(), _Launches(shard, lives)
    waiting = len(files)
    try:
        for path in files:
            _play(path, launches, domain, uncovered)
            waiting -= 1
        while (failing := uncovered.pop()) is not None:
            lives.meet(failing.order, failing.answer, failing.before)
    except BaseException:
        while (failing := uncovered.pop()) is not None:
            lives.see(failing.order, failing.answer)
        if waiting:
            lives.emit(Note(lives.shard, NOT_PLAYED.format(waiting, len(files))))
        raise


@dataclass(frozen=True)
class _Launches:
    """The launches of a shard; the life of what fails has it until the answer has come back."""

    shard: Launches
    lives: FailureLives

    def judge(self, order: Order, phase: Phase) -> Answer:
        answer = self.shard.judge(order, phase)
        self.lives.take_unmet()
        return answer

    def renew(self) -> None:
        self.shard.renew()


def _play(path: Path, launches: _Launches, domain: AnyDomain, uncovered: Uncovered) -> None:
    """Play one counterexample and report it; ``uncovered`` gets what it does not cover."""
    lives = launches.lives
    try:
        found = counterexamples.load(path)
    except CounterexampleError as error:
        lives.emit(Note(lives.shard, str(error)))
        return
    lacking = operation_of(found.case).unpromised(found.case, domain)
    if lacking:
        lives.emit(Note(lives.shard, f"{path} is not played: {NOT_PROMISED.format(lacking)}"))
        return
    try:
        result = played(found, launches, "saved", uncovered)
    except BaseException:
        if unmet := lives.take_unmet():
            _cover(found, path, lives, uncovered, *unmet)
        raise
    if result.own:
        _enter(found, result.own[0], path, lives)
    elif result.others:
        lives.emit(Note(lives.shard, changed_in_words(path, found, result)))
    elif result.answer.judged and (unseen := found.unseen_on(lives.backend)):
        lives.emit(Note(lives.shard, f"{path} passes here, which says nothing: {unseen}"))
    elif result.answer.judged:
        lives.emit(SavedPassed(lives.shard, found, str(path)))
    else:
        why = REFUSES if result.answer.refusal is not None else UNSUPPORTED
        lives.emit(Note(lives.shard, f"{path} is not judged: {why}"))


def _cover(
    found: Counterexample, path: Path, lives: FailureLives, uncovered: Uncovered, order: Order, answer: Answer
) -> None:
    """Report the failing answer to an order of a file that an interrupt kept from coming back."""
    own, rest = split(found, answer) if order == order_of(found) else ((), failures_of(answer))
    if rest:
        uncovered.add(Failing(order, msgspec.structs.replace(answer, verdict=rest[0], others=rest[1:])))
    if own:
        _enter(found, own[0], path, lives)


def changed_in_words(path: Path, found: Counterexample, result: Played) -> str:
    """Return that a file does not fail any more as it says, and how it fails now."""
    now = ", ".join(dict.fromkeys(failing.answer.verdict.what for failing in result.others))
    return f"{path} fails in another way than it says ({found.verdict.what}): {now}, which is a failure of its own"


def played(found: Counterexample, launches: Launches, phase: Phase, uncovered: Uncovered | None = None) -> Played:
    """Return what a counterexample does in a fresh process, after its sequence if it has one.

    A flaky one runs until it fails as it says, as often as it needed when it was found. ``uncovered`` gets at once what
    the file does not cover, as a launch may raise because the time is up.
    """
    launches.renew()
    others, before = Uncovered(), list[Order]()

    def add(order: Order, answer: Answer) -> None:
        for each in (others, uncovered):
            if each is not None:
                each.add(Failing(order, answer, tuple(before)))

    for step in found.sequence:
        order = Order(step.case, step.relation)
        answer = launches.judge(order, phase)
        if not answer.verdict.passed:
            add(order, answer)
        before.append(order)
    order = order_of(found)
    for _ in range(max(1, min(2 * found.tries, MOST_TRIES)) if found.confirmation == "flaky" else 1):
        answer = launches.judge(order, phase)
        own, rest = split(found, answer)
        if rest:
            add(order, msgspec.structs.replace(answer, verdict=rest[0], others=rest[1:]))
        before.append(order)
        if own:
            break
    return Played(answer, own, others.all)


def _enter(found: Counterexample, verdict: Verdict, path: Path, lives: FailureLives) -> None:
    """Make a saved failure that still fails a known one; its trigger says which cases to draw less often.

    One that was only seen is confirmed by that: it has failed in a fresh process now.
    """
    trigger = found.trigger or operation_of(found.case).aspects.needed_by(found.case, found.relation)
    if found.confirmation == "unconfirmed":
        found = msgspec.structs.replace(found, confirmation="confirmed")
    if found.elsewhere is not None and class_of(verdict) in found.elsewhere.found_as:
        verdict = found.verdict  # it names the line that the backend that explains has found
    if (verdict.what, verdict.message, verdict.worst) == (
        found.verdict.what,
        found.verdict.message,
        found.verdict.worst,
    ):
        verdict = found.verdict  # it also says the cause
    found = msgspec.structs.replace(found, verdict=verdict, trigger=trigger)
    failure = lives.records.enter(found, str(path), saved=True)
    failure.trigger = trigger_in(found)
    lives.known.add(failure)
    lives.emit(FailureChanged(lives.shard, failure.number, found, str(path), done=True))
