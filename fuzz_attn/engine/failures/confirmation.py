"""Confirmation: launches that say more of a failing case. It runs again, in a fresh process, after the cases before it.

A closer look tells more about its cause. What another backend explains is checked here, on the one that found it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from fuzz_attn import counterexamples
from fuzz_attn.counterexamples import Counterexample, Step
from fuzz_attn.engine.events import Emit, News, Phase
from fuzz_attn.engine.failures.records import Records
from fuzz_attn.engine.failures.triage import KnownFailure, class_of, failures_of, is_same_way
from fuzz_attn.engine.isolated_worker import Explainer
from fuzz_attn.engine.orders import Answer, Order, Ready
from fuzz_attn.forensics.explanation import Explanation
from fuzz_attn.operations.registry import operation_of
from fuzz_attn.oracle.verdict import Verdict, Weights

LAST_CASES: Final = (16, 256)
"""How many of the worker's last cases are replayed before the failing one, few first."""
TRIES: Final = 10
"""How often a case runs that fails only sometimes."""
CHECKS: Final = 3
"""How often a failure must recur, without a pass, before it counts as certain: once can be chance."""


class Launches(Protocol):
    """What judges cases: a campaign, or a worker on its own."""

    def judge(self, order: Order, phase: Phase) -> Answer:
        """Return the answer to an order; may raise when the time is up."""

    def renew(self) -> None:
        """Let the next order be judged by a process that has judged none."""


Wanted: TypeAlias = Callable[[Verdict], bool]


@dataclass(frozen=True)
class Dependent:
    """What a failure depends on; the fields are those of a counterexample."""

    confirmation: Literal["state", "flaky"]
    sequence: tuple[Order, ...] = ()
    failed: int = 0
    tries: int = 0


def dependent(
    order: Order, failure_class: str, launches: Launches, before: Sequence[Order], checks: int = CHECKS
) -> Dependent:
    """Return what a failure depends on that does not recur in a fresh process: earlier cases, or chance.

    After earlier cases it must recur in all of some ``checks``.
    """
    sequence = sequence_before(order, failure_class, launches, before, checks)
    if sequence:
        return Dependent("state", sequence)
    failed = 1 + repeated(order, failure_class, launches)
    return Dependent("flaky", failed=failed, tries=TRIES + 2)  # with the first one, and the one in a fresh process


def repeated(order: Order, failure_class: str, launches: Launches) -> int:
    """Return how often an order fails of ``TRIES`` times."""
    return sum(showed(launches.judge(order, "confirm"), failure_class) for _ in range(TRIES))


def in_fresh_process(order: Order, launches: Launches) -> Answer:
    """Return the answer to an order in a fresh process."""
    launches.renew()
    return launches.judge(order, "confirm")


def order_of(found: Counterexample) -> Order:
    """Return the order that repeats the case of a counterexample."""
    return Order(found.case, found.relation)


def signed(order: Order, verdict: Verdict, target: str, ready: Ready) -> Counterexample:
    """Return a counterexample of an order, with its relation only where that may have caused the failure."""
    relation = verdict.property_name if verdict.property_name in operation_of(order.case).relations else None
    if verdict.kind in ("crash", "timeout"):
        relation = order.relation
    found = counterexamples.signed(target, ready.family, relation, order.case, verdict)
    own = ready.binding
    promises = own.rounding or own.promises or "features" in own.domain  # a replay needs them too
    binding = None if ready.published and not promises else own
    environment = counterexamples.environment_of(ready.backend, ready.shims)
    return msgspec.structs.replace(found, environment=environment, binding=binding)


def steps_of(sequence: Sequence[Order]) -> tuple[Step, ...]:
    """Return a sequence of orders as a counterexample has it."""
    return tuple(Step(order.case, order.relation) for order in sequence)


def shows(answer: Answer, failure_class: str) -> bool:
    """Return whether an answer has a failure of a class."""
    return any(class_of(verdict) == failure_class for verdict in failures_of(answer))


def showed(answer: Answer, failure_class: str) -> bool:
    """Return whether an answer has a failure of a class, or had it before the order was judged in a fresh process."""
    earlier = answer.earlier is not None and class_of(answer.earlier) == failure_class
    return earlier or shows(answer, failure_class)


def sequence_before(
    order: Order, failure_class: str, launches: Launches, before: Sequence[Order], checks: int = CHECKS
) -> tuple[Order, ...]:
    """Return the last cases before an order after which it fails each time, nothing if it passes."""
    for count in LAST_CASES:
        sequence = tuple(before[-count:])
        if sequence and all(after(sequence, order, failure_class, launches) for _ in range(checks)):
            return sequence
        if count >= len(before):
            break
    return ()


def after(sequence: Sequence[Order], order: Order, failure_class: str, launches: Launches) -> bool:
    """Return whether an order fails after a sequence in a fresh process."""
    launches.renew()
    for earlier in sequence:
        launches.judge(earlier, "confirm")
    return showed(launches.judge(order, "confirm"), failure_class)


def shortened(sequence: tuple[Order, ...], fails: Callable[[tuple[Order, ...]], bool]) -> tuple[Order, ...]:
    """Return a sequence without the cases that the failure does not need; ``fails`` may raise to end the search."""
    size = len(sequence) // 2
    while size:
        start = 0
        while start < len(sequence):
            shorter = sequence[:start] + sequence[start + size :]
            if shorter and fails(shorter):
                sequence = shorter
            else:
                start += size
        size //= 2
    return sequence


SMALL_ERROR: Final = 2.0
"""An error below this many bounds that a rounding would explain is more likely that than a bug."""


def explained(judge: Callable[[Order], Answer], order: Order, verdict: Verdict) -> Verdict:
    """Return a failure that also names the poison that reaches the output, or the rounding that would explain it.

    This takes up to twenty launches. A launch that ends otherwise, for example with a crash, explains nothing.
    """
    if verdict.passed or order.in_fresh_process:
        return verdict
    again = judge(msgspec.structs.replace(order, explain=True)).verdict
    return again if again.what == verdict.what else verdict


def in_words(judge: Callable[[Order], Answer], order: Order, verdict: Verdict) -> Verdict:
    """Return a failure with what the kernel does wrong in a sentence, and weights that show it, if they can be told.

    Small errors that one rounding would explain are said to be that, perhaps.
    """
    rounding = verdict.rounding
    if rounding and verdict.ratio is not None and verdict.ratio < SMALL_ERROR:
        words = f"undeclared rounding? It passes with {rounding}, and is {verdict.ratio:.3g} bounds off without"
        return msgspec.structs.replace(verdict, explanation=words, cause=f"undeclared {rounding}")
    explanation = judge(msgspec.structs.replace(order, forensics=True, site=verdict.site)).explanation
    if explanation is None:
        return verdict
    verdict = msgspec.structs.replace(verdict, weights=weights_of(explanation))
    if explanation.reason == "unknown":
        return verdict
    return msgspec.structs.replace(verdict, explanation=explanation.sentence, cause=explanation.cause)


def weights_of(explanation: Explanation) -> Weights | None:
    """Return the weights of an explanation as a file holds them, with three digits."""
    shown = explanation.heatmap
    if shown is None:
        return None
    used, right = (tuple(map(_as_text, rows)) for rows in (shown.actual, shown.expected))
    return Weights(
        shown.sequence, shown.head, shown.queries, shown.first_key, used, right, shown.visible, explanation.longer
    )


def _as_text(weights: Iterable[float]) -> str:
    return " ".join("?" if weight < 0 else f"{weight:.3g}" for weight in weights)


MOST_LARGER: Final = 6
"""So many larger cases are launched at most to find one that fails on the finding backend, where the shrunk one passes.

That is enough to find the place among 64 steps of shrinking, and each may compile.
"""
NOT_REPLAYED: Final = "it was not replayed there"
ONLY_SEEN: Final = "it was seen, and not followed"
AFTER_OTHERS: Final = "it fails only after other cases, which were not run there"
"""Why it is unknown what a failure does on the explaining backend."""


class LookBeside(Protocol):
    """Saves what a case shows beside a failure."""

    def __call__(self, failure: KnownFailure, order: Order, answer: Answer, phase: Phase) -> None:
        """Save each failure in an answer that is new."""


class Here:
    """Launches shrunk cases on the finding backend, which ``launches`` judges on."""

    def __init__(self, launches: Launches, records: Records, look_beside: LookBeside) -> None:
        self._launches = launches
        self._records = records
        self._look_beside = look_beside

    def say(self, failure: KnownFailure, **fields: object) -> None:
        """Let a failure say what it does on the explaining backend, or what its shrunk case does on its own."""
        elsewhere = failure.found.elsewhere
        if elsewhere is not None:
            self._records.change(failure, elsewhere=msgspec.structs.replace(elsewhere, **fields))

    def note(self, known: KnownFailure, classes: Collection[str]) -> None:
        """Let a known failure have further classes on the finding backend."""
        elsewhere, new = known.found.elsewhere, set(classes) - known.found_as
        if not new:
            return
        known.seen_as |= new
        if elsewhere is not None and known.shard == self._records.shard and not known.saved:
            found_as = tuple(sorted({*elsewhere.found_as, *new}))
            elsewhere = msgspec.structs.replace(elsewhere, found_as=found_as)
            known.found = msgspec.structs.replace(known.found, elsewhere=elsewhere)
            self._records.rewrite(known)

    def take_from(self, failure: KnownFailure, earlier: KnownFailure, digest: Callable[[KnownFailure], str]) -> None:
        """Let a failure that only the explaining backend had shown be one that the finding backend found."""
        elsewhere, own = failure.found.elsewhere, earlier.shard == self._records.shard and not earlier.saved
        if earlier.found.elsewhere is not None or elsewhere is None or not (own and earlier.there):
            return
        elsewhere = msgspec.structs.replace(elsewhere, outcome="fails", reason="")
        environment = failure.found.environment
        earlier.found = msgspec.structs.replace(earlier.found, environment=environment, elsewhere=elsewhere)
        try:
            self.check(earlier)
        finally:
            self._records.finish(earlier, digest(earlier))

    def check(self, failure: KnownFailure) -> None:
        """Launch a case that was shrunk on the explaining backend on the finding one.

        Where it passes, the failure gets the smallest of the cases on the way to it that is found to fail here.
        """
        if not failure.there or failure.found.elsewhere is None:
            return
        steps, last = failure.steps, len(failure.steps) - 1
        if self._fails(failure, steps[last]):
            self.say(failure, shrunk_case="fails")
        elif not last or not self._fails(failure, steps[0]):
            self.say(failure, shrunk_case="passes")
        else:
            found = self._smallest(failure)
            case = {"case": found.case, "relation": found.relation, "verdict": found.verdict, "also": found.also}
            failure.found = msgspec.structs.replace(failure.found, **case)
            self.say(failure, shrunk_case="larger")

    def _smallest(self, failure: KnownFailure) -> Counterexample:
        """Return a step of which is known that it fails here, while a later one passes: the first fails."""
        fails, passes = 0, len(failure.steps) - 1
        for _ in range(MOST_LARGER):
            middle = (fails + passes) // 2
            if middle == fails:
                break
            if self._fails(failure, failure.steps[middle]):
                fails = middle
            else:
                passes = middle
        return failure.steps[fails]

    def _fails(self, failure: KnownFailure, step: Counterexample) -> bool:
        """Return whether a case fails on the finding backend as it does on the explaining one."""
        order = order_of(step)
        answer = in_fresh_process(order, self._launches)
        failures = failures_of(answer)
        same = [each for each in failures if is_same_way(each, step.verdict, order)]
        if same:
            self._note_found_as(failure, same)
        elif failures and not answer.killed:
            self._look_beside(failure, order, answer, "confirm")
        return bool(same)

    def _note_found_as(self, failure: KnownFailure, verdicts: Sequence[Verdict]) -> None:
        elsewhere = failure.found.elsewhere
        if elsewhere is not None:
            found_as = {*elsewhere.found_as, *map(class_of, verdicts)}
            if found_as != {*elsewhere.found_as}:
                self.say(failure, found_as=tuple(sorted(found_as)))


class Shard(Launches, Protocol):
    """What a failure's life needs of the campaign."""

    emit: Emit
    news: News
    """Returns what other shards have found since the last call."""

    @property
    def launch_seconds(self) -> float:
        """After how many seconds a launch counts as a hang."""

    @property
    def ready(self) -> Ready:
        """What the worker said when it was ready."""

    @property
    def explainer(self) -> Explainer | None:
        """What explains failures on another backend; None where the shard's own does."""

    @property
    def keeps(self) -> bool:
        """Whether the target is seen to keep something between calls."""

    def signed(self, order: Order, verdict: Verdict) -> Counterexample:
        """Return a new counterexample of an order."""

    def digest(self, order: Order) -> str:
        """Return the digest of an order's tensors, empty where it cannot be computed."""
