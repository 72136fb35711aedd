"""Triage: whether two failures are one bug, also of two backends, or one row of a contract.

Most launchers pass no stride of what has one axis, so that lengths, prefix sums and tables fail one by one for one
reason. Each argument is found and shrunk as a failure of its own, and then ends in the row of the first one.

Each failure has a *class*: what went wrong, and for an exception or a sanitizer's finding where. A failure is the same
bug as a known one if its class is the same and its case has the known one's trigger. An exception or a finding at the
same line is the same bug whatever the trigger.

A GPU shows what comes out: a wrong output, a write outside, a crash, a hang. It names no line. The simulator runs the
same kernel with sanitizers, so that one bug may have another class there. These are the same failure:

- Both have the same class (:func:`class_of`): a wrong output on both, the same
  exception at the same line of the target.
- A sanitizer names a line in the simulator, and the GPU shows anything but an exception. An access outside of a tensor,
  a race, unwritten memory, a false hint and the others leave open what a GPU does: it may compute something else,
  write elsewhere, crash, or not end. Guard bands of a GPU find some of it without a line.
- A kernel's own assertion, or a grid that is too large, is an exception of the simulator and a crash or an exception on
  a GPU.

What is left is not the same: for example a wrong output on a GPU where the simulator raises. A wrong output is not told
from another wrong output of the same case. So a case with two bugs, one of logic and one that only
the GPU has, counts as the bug of logic at first. The search goes on with cases that do not have its trigger.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from fuzz_attn.case.contract_trial import NAME, trial_of
from fuzz_attn.case.paths import of_any_configuration
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.events import Which, name_of
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.operations.registry import OPERATIONS, operation_of
from fuzz_attn.oracle.verdict import Verdict

_PREFIX: Final = f"{NAME} "


def contract_of(verdict: Verdict) -> str:
    """Return the class of a failure of a contract, which is what it is about; nothing for other verdicts."""
    return _PREFIX + verdict.message.partition(":")[0] if verdict.property_name == NAME and not verdict.passed else ""


def is_contract(failure_class: str) -> bool:
    """Return whether a class is that of a contract."""
    return failure_class.startswith(_PREFIX)


def contracts_of(found: Counterexample) -> tuple[str, ...]:
    """Return the classes of the contracts that the row of a counterexample names, its own first."""
    named = (contract_of(found.verdict), *filter(is_contract, found.also))
    return tuple(dict.fromkeys(filter(None, named)))


def have_one_row(one: Counterexample, other: Counterexample) -> bool:
    """Return whether two failures are contracts of arguments that are read wrongly in the same way.

    A mark as known covers the arguments that its file names, and no others.
    """
    first, second = trial_of(one.case), trial_of(other.case)
    if first is None or second is None or first.way != second.way or one.confirmation != other.confirmation:
        return False
    pairs = (one, other), (other, one)
    return all(a.status != "known" or set(contracts_of(b)) <= set(contracts_of(a)) for a, b in pairs)


def naming(found: Counterexample, *others: Counterexample) -> Counterexample:
    """Return a counterexample that also names the contracts of others, those that end in its row."""
    named = contracts_of(found)
    new = {name for other in others for name in contracts_of(other)}.difference(named)
    return replace(found, also=(*found.also, *sorted(new))) if named and new else found


def others_in_words(found: Counterexample) -> str:
    """Return of which other arguments the same holds, such as ``strides of block_table, strides of sinks``."""
    return ", ".join(name.removeprefix(_PREFIX) for name in contracts_of(found)[1:])


OUTPUT: Final = "output"
"""The class of every wrong output: one bug may show as a mismatch, as NaN, or as different bits."""
MOST_REPLAYED: Final = 8
"""The most cases that are replayed on the backend that explains, of those that show a failure of the other only."""
UNWRITTEN: Final = "unwritten"
HANG: Final = "timeout"
_OUTPUT_KINDS: Final = frozenset(("mismatch", "nan", "inf", "nondeterministic", "poison_dependent", "different_bits"))
_SANITIZER_KINDS: Final = frozenset(
    (
        *("out_of_bounds", "uninitialised", "race", "overflow"),
        *("conflicting_store", "unordered_load", "false_hint", "undefined_integer"),
    )
)
WRITTEN_OUTSIDE: Final = "written_outside"
_FP8_OUTPUTS: Final = frozenset(operation.fp8_output for operation in OPERATIONS.values() if operation.fp8_output)
_WITHOUT_EFFECT: Final = ("sanitizer", WRITTEN_OUTSIDE)
"""Classes that leave the output judged; others of the same case follow only if they are in ``also``."""


def failures_of(answer: Answer) -> tuple[Verdict, ...]:
    """Return the failed verdicts of an answer, the first of each class."""
    verdicts = (verdict for verdict in (answer.verdict, *answer.others) if not verdict.passed)
    by_class: dict[str, Verdict] = {}
    for verdict in verdicts:
        by_class.setdefault(class_of(verdict), verdict)
    return tuple(by_class.values())


def class_of(verdict: Verdict) -> str:
    """Return the class of a failure, which stays the same while it is shrunk. It names an output beside attention's.

    That of a contract trial is what it is about.
    """
    if contract := contract_of(verdict):
        return contract
    of = f" {verdict.output}" if verdict.output not in ("", "out") else ""
    if verdict.kind in _OUTPUT_KINDS:
        return OUTPUT + of
    if verdict.kind in _SANITIZER_KINDS:
        return f"sanitizer {verdict.site or verdict.kind}"
    if verdict.kind == "exception":
        raised = re.search(r"raised (\w+)", verdict.message)
        return f"exception {raised.group(1) if raised else ''} {verdict.site}".rstrip()
    return verdict.kind + of


def is_of_output(failure_class: str) -> bool:
    """Return whether the elements of an output are wrong or were never written."""
    return failure_class.partition(" ")[0] in (OUTPUT, UNWRITTEN)


def is_finding(verdict: Verdict) -> bool:
    """Return whether a verdict is an undefined access or number that a sanitizer or a guard band has found."""
    return verdict.kind in _SANITIZER_KINDS


def has_cause(verdict: Verdict) -> bool:
    """Return whether the cause of a failure that may leave the output right can be told: a wrong access or write."""
    return is_finding(verdict) or verdict.kind == WRITTEN_OUTSIDE


def has_place(failure_class: str) -> bool:
    """Return whether the class names a line, so that it needs no trigger to be one bug."""
    return ":" in failure_class


def alike(one: str, other: str, traits: frozenset[str]) -> bool:
    """Return whether two classes are the same. An fp8 NaN has the bits of an fp8 element that was never written."""
    same_output = is_of_output(one) and is_of_output(other) and one.partition(" ")[2] == other.partition(" ")[2]
    return one == other or (same_output and not _FP8_OUTPUTS.isdisjoint(traits))


def split(found: Counterexample, answer: Answer) -> tuple[tuple[Verdict, ...], tuple[Verdict, ...]]:
    """Return the failed verdicts of an answer that a counterexample's file covers, and the others.

    A file covers the class of its verdict, those that it had on the backend that found it and, while one of them shows,
    what follows from it.
    """
    failures, traits = failures_of(answer), traits_of_both(found)
    classes = (class_of(found.verdict), *(found.elsewhere.found_as if found.elsewhere else ()))
    own = tuple(each for each in failures if any(alike(class_of(each), name, traits) for name in classes))
    covered = found.also if own else ()
    return own, tuple(verdict for verdict in failures if verdict not in own and class_of(verdict) not in covered)


@dataclass(eq=False)
class KnownFailure:
    """A failure that this shard knows: its own, another shard's, or a saved one.

    ``trigger`` is None while it is unknown, as for a failure that depends on earlier cases. A failure that was shrunk
    only in part is not ``complete``. ``number`` counts the failures of its shard. A ``saved`` one has an older file.
    """

    shard: int
    number: int
    found: Counterexample
    path: str
    trigger: frozenset[str] | None = None
    complete: bool = True
    saved: bool = False
    other_triggers: list[frozenset[str]] = field(default_factory=list)
    """Triggers of other cases that turned out to be the same bug."""
    steps: list[Counterexample] = field(default_factory=list)
    """The cases of its last reduction, one by one."""
    there: bool = False
    """Whether it is judged on the explaining backend, and not on the one that finds."""
    seen_as: set[str] = field(default_factory=set)
    """Classes that it had on the backend that finds, beyond those that its counterexample names."""
    other_classes: set[str] = field(default_factory=set)
    """Classes of other failures that turned out to be the same bug, on the backend that it is judged on."""
    replayed: list[frozenset[str]] = field(default_factory=list)
    """The traits of cases that showed it and were replayed on the explaining backend."""

    @property
    def name(self) -> str:
        """What names it in events."""
        return name_of(self.shard, self.number, self.path)

    @property
    def which(self) -> Which:
        """Its shard and its number there."""
        return self.shard, self.number

    @property
    def failure_class(self) -> str:
        """The class of its verdict."""
        return class_of(self.found.verdict)

    def shows(self, verdict: Verdict) -> bool:
        """Return whether a verdict is of the class of this failure, or of its line."""
        same_place = bool(verdict.site) and verdict.site == self.found.verdict.site
        return same_place or class_of(verdict) in (self.failure_class, *self.other_classes)

    @property
    def is_kept(self) -> bool:
        """Whether it is confirmed to need an earlier call of the target, which keeps something."""
        return self.found.confirmation == "confirmed" and Order(self.found.case).in_fresh_process

    @property
    def core(self) -> frozenset[str]:
        """Its trigger without nuances and the levels of sizes; nothing where it is unknown."""
        return operation_of(self.found.case).aspects.core(self.trigger or ())

    def with_like(self, traits: frozenset[str]) -> frozenset[str]:
        """Return the traits of a case, those of all configurations that show this failure if it has one of these."""
        return of_any_configuration(traits, self.found.verdict.configurations)

    @property
    def found_as(self) -> set[str]:
        """The classes that it had on the backend that finds; none where that also explains it."""
        elsewhere = self.found.elsewhere
        return self.seen_as if elsewhere is None else {*self.seen_as, *elsewhere.found_as}

    @property
    def is_avoided(self) -> bool:
        """Whether its cases show little else, so that most of them need not run."""
        harmless = self.failure_class.startswith(_WITHOUT_EFFECT) and not (self.found.also or self.found_as)
        return bool(self.trigger) and not harmless

    def widen(self, same: KnownFailure) -> None:
        """Need no longer what another case of the same bug does without, and know what that case needs."""
        self.other_classes |= {same.failure_class, *same.other_classes} - {self.failure_class}
        if same.trigger and same.complete:
            self.other_triggers.append(same.trigger)
        if self.trigger is not None and same.trigger is not None and self.core:
            self.trigger &= traits_of_both(same.found) | self.core

    def may_hide(self, order: Order) -> bool:
        """Return whether an order that shows it should be replayed on the explaining backend, and note that it is.

        A failure of the finding backend only may hide a bug of logic of its class that needs what it needs and more. So
        cases that show it are replayed, a few of them, each of which has a trait that those before did not have.
        """
        traits = operation_of(order.case).aspects.core(traits_of_both(order))
        news = traits.difference(*self.replayed)
        if not self.found.only_here or not news or len(self.replayed) >= MOST_REPLAYED:
            return False
        self.replayed.append(traits)
        return True

    def shown_by(self, failure_class: str, traits: frozenset[str], *, there: bool = False) -> bool:
        """Return whether a failure of a class, of a case with these traits, is this one.

        ``there`` it was seen on the explaining backend, where a failure has its own class only, and where one that
        only the finding backend shows does not fail.
        """
        own = alike(failure_class, self.failure_class, traits) or failure_class in self.other_classes
        possible = own and not self.found.only_here if there else own or failure_class in self.found_as
        if not possible:
            return False
        traits = self.with_like(traits)
        triggers = (self.trigger, *self.other_triggers)
        has_line = own and has_place(failure_class)
        return has_line or any(trigger is not None and trigger <= traits for trigger in triggers)


class KnownFailures:
    """All failures that a shard knows."""

    def __init__(self) -> None:
        self._known: list[KnownFailure] = []

    def __iter__(self) -> Iterator[KnownFailure]:
        return iter(tuple(self._known))

    def __len__(self) -> int:
        return len(self._known)

    def add(self, known: KnownFailure) -> None:
        """Add a failure."""
        self._known.append(known)

    def remove(self, known: KnownFailure) -> None:
        """Remove a failure that turned out to be another."""
        self._known = [other for other in self._known if other is not known]

    def matching(self, order: Order, verdict: Verdict, *, there: bool = False) -> KnownFailure | None:
        """Return the known failure that a verdict on an order shows; of several the one that needs most.

        ``there`` is true of a verdict of the explaining backend.
        """
        traits = traits_of_both(order)
        failure_class = class_of(verdict)
        shown = [known for known in self._known if known.shown_by(failure_class, traits, there=there)]
        return max(shown, key=lambda known: len(known.trigger or ()), default=None)

    @property
    def needing_earlier_call(self) -> KnownFailure | None:
        """A failure that is confirmed to need an earlier call of the target, None where none is known."""
        return next((known for known in self._known if known.is_kept), None)

    def by_chance(self, shard: int) -> list[KnownFailure]:
        """Return the failures of a shard that did not recur in a fresh process, those of older files apart."""
        own = [known for known in self._known if known.shard == shard and not known.saved]
        return [known for known in own if known.found.confirmation in ("state", "flaky")]

    def of_used_process(self, failure_class: str) -> KnownFailure | None:
        """Return a failure of a class that a fresh process does not show, or that needs an earlier call."""
        kept = self.needing_earlier_call
        alike = kept if kept is not None and kept.failure_class == failure_class else None
        return self.of_confirmation(failure_class, "state", "flaky") or alike

    def of_confirmation(self, failure_class: str, *confirmations: str) -> KnownFailure | None:
        """Return a failure of a class that was confirmed in one of some ways."""
        for known in self._known:
            if known.failure_class == failure_class and known.found.confirmation in confirmations:
                return known
        return None

    def hangs(self, order: Order) -> bool:
        """Return whether an order has the trigger of a known hang."""
        hanging = [known for known in self._known if HANG in (known.failure_class, *known.found_as)]
        traits = traits_of_both(order) if hanging else frozenset()
        return any(known.shown_by(HANG, traits) for known in hanging)

    def avoids(self, order: Order) -> bool:
        """Return whether an order has the trigger of a failure whose cases show little else."""
        return bool(self._avoided_in(order))

    def around(self, order: Order) -> Order | None:
        """Return an order without the poison that an avoided failure needs, None where it would show one nevertheless.

        So a bug is seen that needs the same features as a frequent one, and other numbers. Others stay as they are.
        """
        triggers = self._avoided_in(order)
        if not triggers:
            return order
        milder = _with_harmless(order, triggers)
        return None if self.avoids(milder) else milder

    def beside(self, order: Order, failure_class: str) -> Order:
        """Return an order without the poison that known failures of a class need.

        A failure that shows there cannot be taken for one of them while it is shrunk.
        """
        needed = (known.trigger for known in self._known if known.failure_class == failure_class)
        return _with_harmless(order, (trigger for trigger in needed if trigger is not None))

    def _avoided_in(self, order: Order) -> list[frozenset[str]]:
        """Return the triggers that an order has of failures whose cases show little else."""
        avoided = [(known, known.trigger) for known in self._known if known.is_avoided and known.trigger is not None]
        traits = traits_of_both(order) if avoided else frozenset()
        return [trigger for known, trigger in avoided if trigger <= known.with_like(traits)]

    def same_as(self, new: KnownFailure) -> KnownFailure | None:
        """Return the known failure that a shrunk one is the same bug as."""
        return next((known for known in self._known if known is not new and is_same(known, new)), None)


def _with_harmless(order: Order, triggers: Iterable[frozenset[str]]) -> Order:
    """Return an order with harmless poison where triggers need any, and without a relation that only changes poison."""
    needed = frozenset[str]().union(*triggers)
    operation = operation_of(order.case)
    harmless = [place for name, place in operation.poisons.items() if name in needed]
    if not harmless:
        return order
    relation = None if order.relation == "poison_independence" else order.relation
    return msgspec.structs.replace(order, case=operation.harmless(order.case, harmless), relation=relation)


def is_same(known: KnownFailure, new: KnownFailure) -> bool:
    """Return whether a shrunk failure is the same bug as a known one.

    It is if both have the same cause in words, are found at two lines of a file by the same smallest case, or are
    contracts of arguments that are read wrongly in the same way. Of one class, it is if the same poison reaches the
    output, if it has the known one's trigger, or if the known one has its trigger and needs as much or more, apart from
    nuances and from how long or large the cases are. What a known one needs that could not be shrunk in full is
    unknown. A failure that passes in the simulator is not a bug of logic.
    """
    if (known.found.only_here and new.found.is_logic) or (known.found.is_logic and new.found.only_here):
        return False
    if _same_cause(known, new) or _same_smallest_case(known, new) or have_one_row(known.found, new.found):
        return True
    traits = traits_of_both(known.found) | traits_of_both(new.found)
    return alike(known.failure_class, new.failure_class, traits) and _same_of_class(known, new)


def _same_of_class(known: KnownFailure, new: KnownFailure) -> bool:
    """Return whether a shrunk failure is the same bug as a known one of its class."""
    if has_place(new.failure_class) or _same_poison(known, new):
        return True
    if known.trigger is None or new.trigger is None:
        return known.trigger is new.trigger and _same_without_triggers(known, new)
    if known.trigger <= known.with_like(traits_of_both(new.found)) or known.core == new.core != frozenset():
        return True
    needs_less = new.core and new.core <= known.core
    return bool(not known.complete or needs_less) and new.trigger <= traits_of_both(known.found)


def does_without(new: KnownFailure, known: KnownFailure) -> bool:
    """Return whether a failure does without a feature that a known one of the same bug seemed to need."""
    return new.complete and new.trigger is not None and known.trigger is not None and new.core < known.core


def _same_cause(one: KnownFailure, other: KnownFailure) -> bool:
    """Return whether two failures have the same cause in words, and neither needs features that the other lacks."""
    cause = one.found.verdict.cause
    needed, others = ({trait for trait in one.with_like(each.core) if "{}" not in trait} for each in (one, other))
    together = needed <= others or others <= needed or (one.is_kept and other.is_kept)
    same = bool(cause) and cause == other.found.verdict.cause and together
    one_way = is_of_output(one.failure_class) == is_of_output(other.failure_class)
    if same and not one_way and _OF_OFFSETS.search(cause):
        finding = other if is_of_output(one.failure_class) else one
        return any(map(is_of_output, finding.found.also))
    return same and (one_way or not _OF_ACCESS.search(cause))


_OF_ACCESS: Final = re.compile(r" at .+:\d+\Z")
"""A cause that is a sanitizer's finding. Where the output is wrong too, another mistake may be why."""
_OF_OFFSETS: Final = re.compile(r"\Aoverflow: |\Aaddress: the strides of ")
"""A cause that is one of a launcher's offsets. Outputs are wrong by it if they are where a sanitizer found it."""


def may_be_together(one: KnownFailure, other: KnownFailure) -> bool:
    """Return whether two failures may be one bug that each of their cases shows in both ways.

    They are findings of sanitizers, or one is and the other is a wrong output that was found to follow from it. What
    needs no trait shows in every case: such findings must be of one kind in one kernel.
    """
    first, second = one.found.verdict, other.found.verdict
    findings = [verdict for verdict in (first, second) if is_finding(verdict)]
    logic = one.found.only_here == other.found.only_here
    one_file = len(findings) == 2 and first.site.rpartition(":")[0] == second.site.rpartition(":")[0]
    known = one.trigger is not None and other.trigger is not None and ((one.complete and other.complete) or one_file)
    kinds = {verdict.message.partition(" at ")[0] for verdict in findings}
    if len(kinds) > 1 and not (one.trigger or other.trigger):
        return False
    follows = bool(first.cause) and first.cause == second.cause
    return logic and known and (len(findings) == 2 or (len(findings) == 1 and follows))


def _same_smallest_case(one: KnownFailure, other: KnownFailure) -> bool:
    """Return whether sanitizers name two lines of a file for the same smallest case, such as a load and a store."""
    first, second = one.found, other.found
    found = is_finding(first.verdict) and is_finding(second.verdict) and one.complete and other.complete
    files = {each.verdict.site.rpartition(":")[0] for each in (first, second)}
    return (
        found and bool(one.trigger) and one.trigger == other.trigger and len(files) == 1 and first.case == second.case
    )


def _same_without_triggers(one: KnownFailure, other: KnownFailure) -> bool:
    """Return whether two failures of a class are one bug where neither trigger is known.

    Those that are unconfirmed were only seen, so that nothing but their signature says what they are.
    """
    seen_only = "unconfirmed" in (one.found.confirmation, other.found.confirmation)
    return not seen_only or one.found.signature == other.found.signature


def _same_poison(one: KnownFailure, other: KnownFailure) -> bool:
    """Return whether poison of the same memory reaches the output in both: a kernel reads there what it must not.

    One that shows with harmless poison there is not the one that needs NaN or Inf.
    """
    shared = set(one.found.verdict.poison) & set(other.found.verdict.poison)
    return bool(shared) and not (_does_without(one, other) & shared or _does_without(other, one) & shared)


def _does_without(harmless: KnownFailure, needing: KnownFailure) -> set[str]:
    """Return the memory whose poison one failure needs and another one does without."""
    case = harmless.found.case
    operation = operation_of(case)
    needed = {place for trait, place in operation.poisons.items() if trait in (needing.trigger or ())}
    return {place for place in needed if operation.is_harmless(case, place)}


def traits_of_both(shown: Order | Counterexample) -> frozenset[str]:
    """Return the traits of both launches of an order or a counterexample."""
    return operation_of(shown.case).traits_of(shown.case, shown.relation)


def merged(found: Iterable[tuple[str, Counterexample]]) -> dict[str, str]:
    """Return for each file of a failure that is the same bug as another one the file of that one.

    For shards that could not tell each other what they found. Of two, the one that was shrunk further is kept.
    """
    kept, same = KnownFailures(), {}
    by_needs = sorted(found, key=lambda pair: (not pair[1].shrunk, len(pair[1].trigger)))
    for number, (path, counterexample) in enumerate(by_needs):
        trigger = trigger_in(counterexample)
        new = KnownFailure(0, number, counterexample, path, trigger, complete=counterexample.shrunk)
        earlier = kept.same_as(new)
        if earlier is None:
            kept.add(new)
        else:
            same[path] = earlier.path
    return same


def trigger_in(found: Counterexample) -> frozenset[str] | None:
    """Return the trigger of a counterexample, None where it is unknown."""
    if found.confirmation != "confirmed":
        return None
    return frozenset(found.trigger)


EXCEPTION: Final = "exception"
SANITIZERS: Final = "sanitizers"


def is_same_way(finding: Verdict, explaining: Verdict, order: Order) -> bool:
    """Return whether a failure of the finding backend is one of the explaining backend on the same order."""
    if alike(class_of(finding), class_of(explaining), traits_of_both(order)):
        return True
    if is_finding(explaining):
        return finding.kind != EXCEPTION
    if explaining.property_name == SANITIZERS and explaining.kind == EXCEPTION:
        return finding.kind in (EXCEPTION, "crash")
    return False


def shown_in_same_way(finding: Verdict, answer: Answer, order: Order) -> tuple[Verdict, ...]:
    """Return the failures in an answer of the explaining backend that are the finding backend's, first with a line."""
    same = [verdict for verdict in failures_of(answer) if is_same_way(finding, verdict, order)]
    return tuple(sorted(same, key=lambda verdict: not is_finding(verdict)))
