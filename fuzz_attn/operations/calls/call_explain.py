"""Call explain: which call of a sequence is wrong, and what of an earlier call it needs, from parts of the sequence.

Each part runs in a fork of the process, because nothing that a run leaves there may reach the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from fuzz_attn.errors import CaseError
from fuzz_attn.forensics.explanation import Explanation, Finding
from fuzz_attn.operations.calls.call_case import (
    OTHER_ARGUMENTS,
    OTHER_NUMBERS,
    OWN,
    SHARED,
    CallSequence,
    calls_of,
    one_by_one,
    positions,
    sequence_of,
    with_storage,
    without_raising,
)
from fuzz_attn.operations.calls.call_experiment import CallExperiment
from fuzz_attn.workers.fork import run_in_fork

KINDS: Final = {
    "address": "the target keeps something by address, and uses it for other contents",
    "shape": "the target keeps something by shape or arguments, and uses it for other tensors",
    "memory": "the target does not make anew what an earlier call has left",
    "threads": "calls in two threads share something",
    "streams": "calls in two streams share something, or run in another stream than the current one",
    "error": "the target does not clean up after an error",
}
"""What may be wrong, by what the failure needs."""
ONE_BY_ONE: Final = "one after the other"
WITHOUT_ERROR: Final = "where no call raises"
OWN_STORAGE: Final = "with storage of its own"
_PARENT_MUST_NOT_FORK: Final = "cuda"


class Result(NamedTuple):
    """What a run of a sequence comes to; ``number`` is the place of its failing call."""

    failed: bool
    number: int = 0
    same_as: int = 0


def explain(experiment: CallExperiment) -> Explanation:
    """Return which call is wrong, what it returns, and without what it is right."""
    case = experiment.calls
    whole = _result(experiment, case)
    if whole is None or not whole.failed:
        return Explanation((Finding("unknown", "the sequence of calls did not fail again"),), launches=len(case.calls))
    number = whole.number
    if not number and not any(call.alongside for call in case.calls[1:2]):
        return experiment.single.explain(single_of(experiment, case.calls[0].case), None)
    until = number + 1 + any(call.alongside for call in case.calls[number + 1 : number + 2])
    case = CallSequence(case.calls[:until]) if number else case
    facts = f"it returns what call {whole.same_as} returned, bit for bit" if whole.same_as else "it is wrong"
    forks = experiment.backend.device != _PARENT_MUST_NOT_FORK
    right = [words for words, changed in _parts(case) if not forks or _passes(experiment, changed)]
    if forks and not right and not _passes(experiment, case.calls[number].case):
        return experiment.single.explain(single_of(experiment, case.calls[number].case), None)
    alone = f", but right {ranged(right)}" if right and forks else ""
    kind = KINDS[_kind(case, right)]
    words = f"{kind}: {list(positions(case))[number]}: {facts}{alone}"
    return Explanation((Finding("earlier call", words, cause=f"earlier call: {kind}"),), launches=6)


def wrong_alone(experiment: CallExperiment) -> Any:
    """Return the case of the failing call if it needs none of the others; None where it does, or nothing fails."""
    case = experiment.calls
    whole = _result(experiment, case)
    if whole is None or not whole.failed or experiment.backend.device == _PARENT_MUST_NOT_FORK:
        return None
    alone = case.calls[whole.number].case
    return None if _passes(experiment, alone) else alone


def single_of(experiment: CallExperiment, case: Any) -> Any:
    """Return the experiment of a case with only one call."""
    single = experiment.single.experiment(case, experiment.target, experiment.backend, strict=experiment.strict)
    experiment.learn(single)
    return single


def ranged(words: list[str]) -> str:
    """Return texts as a list in words.

    >>> ranged(["a", "b", "c"])
    'a, b, and c'
    """
    if len(words) < 3:
        return " and ".join(words)
    return f"{', '.join(words[:-1])}, and {words[-1]}"


def _parts(case: CallSequence) -> list[tuple[str, CallSequence | object]]:
    """Return cases that lack something of a sequence, each with what its last call is like there."""
    changes: list[tuple[str, Callable[[], object]]] = [("without the earlier calls", lambda: case.last)]
    if any(call.alongside for call in case.calls):
        changes.append((ONE_BY_ONE, lambda: one_by_one(case)))
    if any(call.raises for call in case.calls):
        changes.append((WITHOUT_ERROR, lambda: without_raising(case)))
    if any(call.storage != "fresh" for call in case.calls):
        changes.append((OWN_STORAGE, lambda: _with_fresh(case)))
    for words, name in (("after the same arguments", OTHER_ARGUMENTS), ("after the same numbers", OTHER_NUMBERS)):
        aspect = next(each for each in OWN if each.words == name)
        if aspect.value(case):  # type: ignore[arg-type]
            changes.append((words, lambda aspect=aspect: aspect.without(case)))  # type: ignore[misc]
    found = []
    for words, change in changes:
        try:
            found.append((words, change()))
        except CaseError:
            continue
    return found


def _with_fresh(case: CallSequence) -> object:
    for storage in SHARED:
        case = with_storage(case, storage, "fresh")
    return case


def _kind(case: CallSequence, right: list[str]) -> str:
    """Return what may be wrong, from the words for what a sequence is right without."""
    if ONE_BY_ONE in right and any(call.stream for call in case.calls):
        return "streams"
    for words, kind in ((ONE_BY_ONE, "threads"), (WITHOUT_ERROR, "error"), (OWN_STORAGE, "address")):
        if words in right:
            return kind
    return "shape" if any(words.startswith("after the same") for words in right) else "memory"


def _passes(experiment: CallExperiment, case: object) -> bool:
    result = _result(experiment, case)
    return result is not None and not result.failed


def _result(experiment: CallExperiment, case: object) -> Result | None:
    """Return what a case comes to, in a fork where this process can; None where that did not end as it should."""
    backend = experiment.backend
    if backend.device == _PARENT_MUST_NOT_FORK:
        return _run(experiment, case)
    reading, writing = os.pipe()

    def work() -> None:
        os.close(reading)
        os.write(writing, msgspec.json.encode(_run(experiment, case)))

    try:
        run_in_fork(work, 0)
        os.close(writing)
        writing = -1
        answer = os.read(reading, 4096)
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    return Result(*msgspec.json.decode(answer)) if answer else None


def _run(experiment: CallExperiment, case: object) -> Result:
    calls = calls_of(case)
    if len(calls) == 1:
        single = experiment.single.experiment(case, experiment.target, experiment.backend, strict=experiment.strict)
        experiment.learn(single)
        return Result(any(not verdict.passed for verdict in experiment.single.failures(single, None)))
    again = CallExperiment(
        sequence_of(calls), experiment.target, experiment.backend, experiment.single, strict=experiment.strict
    )
    again.learn = experiment.learn
    judged = again.judged
    return Result(judged.failed, judged.number, judged.same_as)
