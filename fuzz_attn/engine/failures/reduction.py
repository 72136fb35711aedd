"""Reduction: makes the case of one failure simpler while it shows it, finds what it needs, and checks the result.

On a GPU, a case that needs a new kernel costs seconds. There it first tries the cases whose kernels are compiled, and
then lets the rest compile a bounded number of kernels.

A case is simpler as :func:`simplicity` says: few features first, then plain types and heads, then short sequences. Each
step drops traits (all of them, halves, single ones), drops sequences, and then searches the smallest lengths and
numbers. Steps repeat until none makes a difference. A step only removes traits, or makes a size smaller. So a case that
does not have the trigger of a known failure never gets it, with one exception that the caller rules out: pages of the
usual size hold more keys.

A trait is needed if the case passes without it. Where it fails without it, but another known failure may be the cause,
nothing is known, and the trait does not count. So a failure that had to be shrunk around a frequent one is recognised
in any case.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, Protocol, Self, TypeAlias

import msgspec

from fuzz_attn.case.aspect_table import ANY_RELATION, AspectTable, named
from fuzz_attn.case.aspects import Aspect
from fuzz_attn.case.paths import needs_paths, with_configuration
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.failures import confirmation
from fuzz_attn.engine.failures.confirmation import Launches, explained, in_words, order_of
from fuzz_attn.engine.failures.records import Records
from fuzz_attn.engine.failures.triage import (
    HANG,
    WRITTEN_OUTSIDE,
    KnownFailure,
    KnownFailures,
    class_of,
    contract_of,
    failures_of,
    has_cause,
    is_of_output,
    may_be_together,
    trigger_in,
)
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.errors import BudgetSpentInterrupt, CaseError, ShareSpentInterrupt
from fuzz_attn.operations.operation import Lengths, Operation
from fuzz_attn.operations.registry import AnyCase, AnyDomain, operation_of
from fuzz_attn.oracle.verdict import OUT_OF_BOUNDS_STORE, Verdict

PART: Final = 0.08
"""The part of a campaign's time that the shrinking of one failure may take."""
PART_OF_A_HANG: Final = 0.25
"""That part for a hang, each step of which takes seconds."""
CHECK_OF_A_HANG: Final = 1.5
"""The time left to check a shrunk hang, in limits of a launch: it waits for one, in a new process."""
LEAST_SECONDS: Final = 3.0
MOST_LAUNCHES: Final = 1000


def share_seconds(max_time: float, *, hang: bool = False) -> float:
    """Return the seconds that the shrinking of one failure may take of a campaign of ``max_time`` seconds."""
    return max(LEAST_SECONDS, (PART_OF_A_HANG if hang else PART) * max_time)


@dataclass
class Share:
    """What the shrinking of one failure may still take; raises :class:`ShareSpentInterrupt` when it is used up."""

    until: float
    launches: int = MOST_LAUNCHES

    @classmethod
    def of_time(cls, max_time: float, *, hang: bool) -> Self:
        """Return what one failure may take of a campaign that lasts ``max_time`` seconds."""
        return cls(time.monotonic() + share_seconds(max_time, hang=hang))

    def leave(self, seconds_left: float, launch_seconds: float) -> None:
        """Leave time to check a hang before the campaign ends in ``seconds_left``."""
        self.until = min(self.until, time.monotonic() + seconds_left - CHECK_OF_A_HANG * launch_seconds)

    def spend(self) -> None:
        """Count one launch."""
        self.launches -= 1
        if self.launches < 0 or time.monotonic() > self.until:
            raise ShareSpentInterrupt


def simplicity(case: AnyCase, relation: str | None = None) -> tuple[float, ...]:
    """Return a key by which simpler cases come first.

    Few features and oddities count most, then plain types and heads, then few and short sequences, then small numbers.
    A relation counts as two features, because its case is two launches.
    """
    operation = operation_of(case)
    return (
        sum(trait.present(case) for trait in operation.aspects.oddities if trait.trait) + 2 * bool(relation),
        sum(trait.present(case) for trait in operation.aspects.kinds if trait.trait),
        *operation.simplicity(case),
        len(msgspec.json.encode(case)),
        case.seed,
    )


def is_simpler(found: Counterexample, other: Counterexample) -> bool:
    """Return whether a counterexample has a simpler case than another one; one of another contract is not simpler."""
    if contract_of(found.verdict) != contract_of(other.verdict):
        return False
    return simplicity(found.case, found.relation) < simplicity(other.case, other.relation)


Fails: TypeAlias = Callable[[Order], bool]
Change: TypeAlias = Callable[[AnyCase], AnyCase]

DENSE: Final = 64
"""Lengths up to here are all tried, since a failure may depend on a length modulo a tile or page."""
STEP, BESIDE = 16, (-2, -1, 0, 1, 2)
"""Beyond, those near multiples of a tile or page are tried."""


def simplify(order: Order, fails: Fails, domain: AnyDomain) -> Order:
    """Return the simplest order of a domain that is found to fail.

    ``fails`` is called with each simpler order; what it returns true for is the best so far. It may raise to end the
    search.
    """
    return Simplification(order, fails, domain).run()


class Simplification:
    """The search for simpler orders; ``best`` is the simplest that failed so far."""

    def __init__(self, order: Order, fails: Fails, domain: AnyDomain) -> None:
        self.best = order
        self._fails = fails
        self._domain = domain

    @property
    def _operation(self) -> Operation:
        """The operation of the best order: a sequence of calls may become a single one."""
        return operation_of(self.best.case)

    @property
    def _aspects(self) -> AspectTable:
        return self._operation.aspects

    def run(self) -> Order:
        """Return the best order once nothing simplifies it further."""
        before = None
        while before != self.best:
            before = self.best
            self._drop_relation()
            self._drop_traits()
            self._drop_parts()
            self._reduce_numbers()
            self._shorten()
        return self.best

    def _attempt(self, order: Order | None) -> bool:
        """Return whether an order is simpler than the best, lies in the domain, and fails; it is the best then."""
        if order is None or _simplicity(order) >= _simplicity(self.best) or not allowed(order, self._domain):
            return False
        failed = self._fails(order)
        if failed:
            self.best = order
        return failed

    def _drop_relation(self) -> None:
        """Drop the relation, else take its second launch as a case of its own."""
        if self.best.relation and not self._attempt(Order(self.best.case)):
            self._attempt(second_order(self.best))

    def _drop_traits(self) -> None:
        """Drop all traits at once, else each half of them, down to single ones."""
        waiting = [tuple(trait.without for trait in self._aspects.traits if trait.present(self.best.case))]
        while waiting:
            changes = waiting.pop()
            if not self._attempt(changed(self.best, *changes)) and len(changes) > 1:
                middle = len(changes) // 2
                waiting += [changes[middle:], changes[:middle]]

    def _drop_parts(self) -> None:
        """Keep one sequence, else drop parts of the batch, down to single sequences."""
        count = self._parts()
        if count > 1 and any(self._attempt(with_parts(self.best, (index,))) for index in range(count)):
            return
        size = count // 2
        while size:
            start = 0
            while start < self._parts():
                kept = (*range(start), *range(start + size, self._parts()))
                if not (kept and self._attempt(with_parts(self.best, kept))):
                    start += size
            size //= 2

    def _parts(self) -> int:
        return self._operation.parts(self.best.case)

    def _reduce_numbers(self) -> None:
        """Replace each number by the simplest that still fails, those of heads and pages first."""
        for aspect in (*self._aspects.kinds, *self._aspects.oddities):
            any(self._attempt(changed(self.best, change)) for change in aspect.smaller)

    def _shorten(self) -> None:
        """Search the smallest number of query tokens, and of keys, of each sequence."""
        for part in range(self._parts()):
            number, found = 0, self._operation.shorter(self.best.case, part, 0)
            while found is not None:
                self._search(found.low, found.high, partial(_resized, self.best, found))
                number += 1
                found = self._operation.shorter(self.best.case, part, number)

    def _search(self, low: int, high: int, make: Callable[[int], Order | None]) -> None:
        """Search a smaller length that fails: the least one, then between passing and failing, then from below."""
        if high <= low or self._attempt(make(low)):
            return
        passing, failing = low, high
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if self._attempt(make(middle)):
                failing = middle
            else:
                passing = middle
        any(self._attempt(make(length)) for length in _lengths(low + 1, failing))


def _simplicity(order: Order) -> tuple[float, ...]:
    return simplicity(order.case, order.relation)


def allowed(order: Order, domain: AnyDomain) -> bool:
    """Return whether a case lies in a domain and its relation holds."""
    return operation_of(order.case).allows(order.case, order.relation, domain)


def second_order(order: Order) -> Order | None:
    """Return the second launch of an order's relation as an order without a relation, None where no case is like it."""
    operation = operation_of(order.case)
    if order.relation is None or not operation.has_second_case(order.relation):
        return None
    return changed(Order(order.case), partial(operation.second_case, relation=order.relation))


def changed(order: Order, *changes: Change) -> Order | None:
    """Return an order with all changes of its case that are possible, None if none is."""
    case = order.case
    for change in changes:
        try:
            case = change(case)
        except CaseError:
            continue
    return None if case == order.case else msgspec.structs.replace(order, case=case)


def with_parts(order: Order, kept: Sequence[int]) -> Order | None:
    """Return an order with some of the parts of its batch; None if that would be the same case."""
    return changed(order, partial(operation_of(order.case).with_parts, kept=kept))


def _resized(order: Order, lengths: Lengths, length: int) -> Order | None:
    return changed(order, lambda case: lengths.resized(length))


def _lengths(low: int, high: int) -> Iterator[int]:
    """Yield the lengths worth a launch each."""
    edges = sorted({edge + beside for edge in range(DENSE, high + STEP, STEP) for beside in BESIDE})
    yield from range(low, min(high, DENSE))
    yield from (length for length in edges if max(low, DENSE) <= length < high)


Shown: TypeAlias = Literal["passes", "fails", "other"]
"""An order passes, shows the failure, or shows one that another known failure may have caused."""
Judge: TypeAlias = Callable[[Order], Shown]

OTHER_RELATIONS: Final = 3


def trigger_of(order: Order, judge: Judge, domain: AnyDomain) -> tuple[str, ...]:
    """Return the traits that a shrunk order of a domain needs to fail.

    Traits of the simplest case too, such as a partly filled page, count if the order passes without them. The number of
    keys counts only as far as the number of pages does not explain it.
    """
    return _Trigger(order, judge, domain).traits()


class _Trigger:
    def __init__(self, order: Order, judge: Judge, domain: AnyDomain) -> None:
        self._order = order
        self._judge = judge
        self._domain = domain

    def traits(self) -> tuple[str, ...]:
        case = self._order.case
        table = operation_of(case).aspects
        needed = [trait for trait in table.traits if trait.present(case) and self._needs(trait, unless=True)]
        needed = [trait for trait in needed if not self._fails_instead(trait, needed)]
        own = [words for trait in needed for words in trait.words_in(case)]
        nuances = [trait.words for trait in table.nuances if trait.present(case) and self._needs(trait, unless=False)]
        smaller = self._with_smaller_blocks()
        sizes = [level for size in table.levelled for level in self._level(size, smaller or self._order)]
        return (*own, *nuances, *sizes, *self._relation())

    def _needs(self, trait: Aspect, *, unless: bool) -> bool:
        """Return whether the order passes without a trait, and ``unless`` where no case is without it."""
        without = self._allowed(changed(self._order, trait.without))
        return unless if without is None else self._judge(without) == "passes"

    def _fails_instead(self, trait: Aspect, needed: Sequence[Aspect]) -> bool:
        """Return whether the order fails without a trait too, where the simplest case does not tell.

        The simplest size lacks another needed trait of this size too, and a target may not have the simplest path.
        """
        words, change = trait.instead or ("", None)
        if words:
            tells = all(other.words != words for other in needed)
        else:
            tells = self._allowed(changed(self._order, trait.without)) is not None
        if change is None or tells:
            return False
        other = self._allowed(changed(self._order, change))
        return other is not None and self._judge(other) == "fails"

    def _allowed(self, order: Order | None) -> Order | None:
        return order if order is not None and allowed(order, self._domain) else None

    def _level(self, size: Aspect, order: Order) -> Iterator[str]:
        """Yield the highest threshold of a size below which the order passes, if there is one."""
        for level in reversed(size.levels_of(order.case)):
            lower = self._allowed(changed(order, partial(size.having, value=level)))
            if lower is None or self._judge(lower) == "passes":
                yield size.above.format(level)
                return

    def _with_smaller_blocks(self) -> Order | None:
        """Return the order with as many smaller blocks of memory if it fails, None if it has one only or passes."""
        for change in operation_of(self._order.case).with_smaller_blocks(self._order.case):
            smaller = self._allowed(changed(self._order, change))
            if smaller is not None and self._judge(smaller) == "fails":
                return smaller
        return None

    def _relation(self) -> Iterator[str]:
        """Yield the relation if the order passes without it: any one, if others show the failure too."""
        order = self._order
        if order.relation is None or self._judge(Order(order.case)) != "passes":
            return
        others = [
            name for name in operation_of(order.case).relations_of(order.case, self._domain) if name != order.relation
        ]
        orders = (msgspec.structs.replace(order, relation=name) for name in others[:OTHER_RELATIONS])
        any_shows = any(self._judge(other) == "fails" for other in orders)
        yield ANY_RELATION if any_shows else named(order.relation)


MOST_KERNELS: Final = 24
"""The reduction of one failure on a GPU may compile so many kernels: at about half a second each, twelve seconds."""
_SHRUNK: Final = ("case", "relation", "verdict", "also", "trigger", "shrunk")


class Lives(Launches, Protocol):
    """What a reduction needs of the lives of a shard's failures."""

    known: KnownFailures
    records: Records

    @property
    def domain(self) -> AnyDomain:
        """What the target promises."""

    def also(self, failure: KnownFailure, order: Order, answer: Answer) -> tuple[str, ...]:
        """Return the classes of what follows from a failure."""


class Reduction:
    """The reduction of one failure, which may take a ``share`` of the campaign; ``steps`` are its cases, one by one.

    With ``few_kernels`` it compiles few. What it skips for that is not tried, so that the failure is not shrunk fully.
    """

    def __init__(self, failure: KnownFailure, lives: Lives, share: Share, *, few_kernels: bool = False) -> None:
        self.failure = failure
        self.steps = [failure.found]
        self._lives = lives
        self._share = share
        self._few_kernels = few_kernels
        self._kernels = 0
        self._skipped = False
        """Whether a case was not tried because one of its kernels is not compiled."""
        self._answers: dict[Order, Answer] = {}

    def run(self) -> None:
        """Shrink and check the failure. A hang that the end of the campaign leaves without a check is not shrunk."""
        first = self.failure.found
        try:
            with contextlib.suppress(ShareSpentInterrupt):
                self._shrink()
            self._check(first)
        except BaseException:
            if self.failure.failure_class == HANG:
                restore(self.failure, first, self._lives.records)
            raise

    def _shrink(self) -> None:
        """Replace the case by simpler ones that show the same failure, then find what it needs."""
        failure, lives = self.failure, self._lives
        needed = operation_of(failure.found.case).aspects.needed_by(failure.found.case, failure.found.relation)
        lives.records.change(failure, trigger=needed)
        if self._few_kernels:
            self._simplify(compiled=True)
        self._skipped = False
        self._simplify(compiled=False)
        trigger = trigger_of(order_of(failure.found), self._judged, lives.domain)
        lives.records.change(failure, trigger=trigger, shrunk=not self._skipped)

    def _simplify(self, *, compiled: bool) -> None:
        def is_smaller(order: Order) -> bool:
            return self._is_smaller(order, compiled=compiled)

        first = order_of(self.failure.found)
        harmless = self._lives.known.beside(first, self.failure.failure_class)
        if harmless != first:
            is_smaller(harmless)
        simplify(order_of(self.failure.found), is_smaller, self._lives.domain)

    def _is_smaller(self, order: Order, *, compiled: bool) -> bool:
        """Return whether an order shows the failure, which it is the case of from then on."""
        answer = self._answer(order, compiled=compiled)
        verdict = None if answer is None else self._shown(order, answer)
        if answer is None or verdict is None:
            return False
        also = self._lives.also(self.failure, order, answer)
        case = {"case": order.case, "relation": order.relation}
        self._lives.records.change(self.failure, **case, verdict=verdict, also=also)
        self.steps.append(self.failure.found)
        return True

    def _judged(self, order: Order) -> Shown:
        """Return what an order shows; one that was not tried counts as passing, so that what it lacks is needed."""
        answer = self._answer(order, compiled=False)
        if answer is None:
            return "passes"
        if self._shown(order, answer) is not None:
            return "fails"
        return "other" if confirmation.shows(answer, self.failure.failure_class) else "passes"

    def _answer(self, order: Order, *, compiled: bool) -> Answer | None:
        """Return the answer to an order, None where it needs a kernel that may not be compiled; a ``compiled`` one."""
        if order not in self._answers:
            self._share.spend()
            compiled = compiled or (self._few_kernels and self._kernels >= MOST_KERNELS)
            answer = self._lives.judge(msgspec.structs.replace(order, compiled=compiled), "shrink")
            self._kernels += answer.compiled
            if self._is_known_elsewhere(order_of(self.failure.found), self.failure.found.verdict):
                raise ShareSpentInterrupt  # another shard has found it too
            if answer.missing:
                self._skipped = True
                return None
            self._answers[order] = answer
        return self._answers[order]

    def _shown(self, order: Order, answer: Answer) -> Verdict | None:
        """Return the verdict that shows the failure, None where a known failure may have caused it."""
        for verdict in failures_of(answer):
            if self.failure.shows(verdict):
                return None if self._is_known_elsewhere(order, verdict) else verdict
        return None

    def _is_known_elsewhere(self, order: Order, verdict: Verdict) -> bool:
        """Return whether a verdict shows another known failure."""
        return self._lives.known.matching(order, verdict, there=self.failure.there) not in (None, self.failure)

    def _check(self, first: Counterexample) -> None:
        """Run the shrunk case in fresh processes, a hang with the full limit.

        A case that fails only sometimes is flaky. Where it never fails, shrinking has followed what earlier cases left
        in the process, or the case is only slow; then it stays as it was first.
        """
        failure, lives = self.failure, self._lives
        order, hang = order_of(failure.found), failure.failure_class == HANG
        if hang and order == order_of(first):
            return
        checks = 1 if failure.failure_class in ("crash", HANG) else confirmation.CHECKS
        answers = [confirmation.in_fresh_process(order, lives) for _ in range(checks)]
        failed = sum(confirmation.shows(answer, failure.failure_class) for answer in answers)
        if failed == checks:
            if hang:
                (verdict,) = (verdict for verdict in failures_of(answers[0]) if class_of(verdict) == HANG)
                lives.records.change(failure, verdict=verdict)
            return
        if not failed:
            restore(failure, first, lives.records)
            self.steps = [first]
            if hang:
                return
            failed = confirmation.repeated(order_of(first), failure.failure_class, lives)
            checks = confirmation.TRIES
        if failed < checks:
            lives.records.change(failure, confirmation="flaky", failed=failed + 1, tries=checks + 1)


def restore(failure: KnownFailure, before: Counterexample, records: Records) -> None:
    """Give a failure the case back that it had before."""
    records.change(failure, **{name: getattr(before, name) for name in _SHRUNK})


def restated(failure: KnownFailure, launches: Launches, domain: AnyDomain) -> tuple[Order, Verdict] | None:
    """Return a case that says better what a failure is, and what it shows; None where none does."""
    return store_behind(failure, launches) or second_alone(failure, launches, domain)


def second_alone(failure: KnownFailure, launches: Launches, domain: AnyDomain) -> tuple[Order, Verdict] | None:
    """Return the second launch of a failed relation as a case of its own, where that fails in the same way."""
    found = failure.found
    second = second_order(order_of(found)) if found.verdict.property_name == found.relation else None
    if second is None or not allowed(second, domain):
        return None
    verdicts = failures_of(launches.judge(second, "shrink"))
    same = [each for each in verdicts if class_of(each) == failure.failure_class]
    return (second, same[0]) if same else None


def store_behind(failure: KnownFailure, launches: Launches) -> tuple[Order, Verdict] | None:
    """Return a case and the store behind its output that it shows, for a failure that wrote to memory of no row.

    While the output's memory goes on behind its last row, such a store names no line. So the case is the failure's
    without rows that only pad the output. None for another failure, or where the case shows no such store.
    """
    case = failure.found.case
    if not failure.failure_class.startswith(WRITTEN_OUTSIDE):
        return None
    order = changed(Order(case), operation_of(case).without_padding)
    verdicts = () if order is None else failures_of(launches.judge(order, "shrink"))
    stores = [each for each in verdicts if each.message.startswith(OUT_OF_BOUNDS_STORE)]
    return (order, stores[0]) if order is not None and stores else None


def shown_together(failure: KnownFailure, lives: Lives) -> KnownFailure | None:
    """Return a known failure whose smallest case shows a new one too, and that the new one's smallest case shows.

    One cause is often seen by several sanitizers, or by one and in the output.
    """

    def classes_of(of: KnownFailure) -> set[str]:
        return {class_of(verdict) for verdict in failures_of(lives.judge(order_of(of.found), "shrink"))}

    candidates = [known for known in lives.known if may_be_together(known, failure) and known.there == failure.there]
    with contextlib.suppress(BudgetSpentInterrupt):
        own = classes_of(failure) if candidates else set()
        for known in candidates:
            if known.failure_class in own and failure.failure_class in classes_of(known):
                return known
    return None


def name_cause(failure: KnownFailure, launches: Launches) -> None:
    """Let a confirmed failure say its cause in words, and a wrong output its poison or rounding, if time is left."""
    found = failure.found
    has_paths = needs_paths(found.trigger)
    told = is_of_output(failure.failure_class) or has_cause(found.verdict) or failure.is_kept
    if found.confirmation != "confirmed" or not (told or has_paths):
        return

    def ask(order: Order) -> Answer:
        return launches.judge(order, "shrink")

    with contextlib.suppress(BudgetSpentInterrupt):
        verdict = found.verdict
        if has_paths or not has_cause(verdict):
            verdict = explained(ask, order_of(found), verdict)
            trigger = with_configuration(found.trigger, verdict.configurations)
            failure.found = found = msgspec.structs.replace(found, verdict=verdict, trigger=trigger)
            failure.trigger = trigger_in(found)
        if told or has_cause(verdict):
            verdict = in_words(ask, order_of(found), verdict)
            failure.found = msgspec.structs.replace(found, verdict=verdict)
