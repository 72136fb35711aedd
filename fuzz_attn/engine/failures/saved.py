"""Saved counterexamples, which every run plays first."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn.case.domain import Domain, unpromised
from fuzz_attn.case.traits import needed_by
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.engine.events import FailureChanged, Note, Phase, SavedPassed
from fuzz_attn.engine.failures.confirmation import Launches
from fuzz_attn.engine.failures.life import FailureLives, order_of
from fuzz_attn.engine.failures.triage import failures_of, trigger_in
from fuzz_attn.engine.messages import Answer, Order
from fuzz_attn.errors import CounterexampleError

NOT_PROMISED: Final = "the target does not promise {}"
REFUSES: Final = "the target or the compiler refuses the case"
MOST_TRIES: Final = 20
"""How often a flaky failure runs before it counts as passing."""


def play_saved(shard: Launches, lives: FailureLives, folder: Path, domain: Domain) -> None:
    """Play the counterexamples of a folder and report each; those that fail are known from then on.

    One that the target refuses, or that its domain does not promise, is reported as such.
    """
    for path in counterexample.files_in((folder,)) if folder.is_dir() else ():
        try:
            found = counterexample.load(path)
        except CounterexampleError as error:
            lives.emit(Note(lives.shard, str(error)))
            continue
        lacking = unpromised(found.case, domain)
        if lacking:
            lives.emit(Note(lives.shard, f"{path} is not played: {NOT_PROMISED.format(lacking)}"))
            continue
        answer = played(found, shard, "saved")
        if answer.refusal is not None:
            lives.emit(Note(lives.shard, f"{path} is not judged: {REFUSES}"))
        elif answer.verdict.passed:
            lives.emit(SavedPassed(lives.shard, found, str(path)))
        else:
            _enter(found, answer, path, lives)


def played(found: Counterexample, launches: Launches, phase: Phase) -> Answer:
    """Return the answer to a counterexample in a fresh process, after its sequence if it has one.

    A flaky one runs until it fails, as often as it needed when it was found.
    """
    launches.renew()
    for step in found.sequence:
        launches.judge(Order(step.case, step.relation), phase)
    answer = launches.judge(order_of(found), phase)
    tries = min(2 * found.tries, MOST_TRIES) if found.confirmation == "flaky" else 1
    while answer.verdict.passed and tries > 1:
        answer = launches.judge(order_of(found), phase)
        tries -= 1
    return answer


def _enter(found: Counterexample, answer: Answer, path: Path, lives: FailureLives) -> None:
    """Make a saved failure that still fails a known one; its trigger says which cases to draw less often."""
    verdict = failures_of(answer)[0]
    trigger = found.trigger or needed_by(found.case, found.relation)
    found = msgspec.structs.replace(found, verdict=verdict, trigger=trigger)
    failure = lives.enter(found, str(path), saved=True)
    failure.trigger = trigger_in(found)
    lives.known.add(failure)
    lives.emit(FailureChanged(lives.shard, failure.number, found, str(path), done=True))
