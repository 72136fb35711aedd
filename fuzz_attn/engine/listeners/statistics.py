"""Statistics of a campaign: counts that a listener folds from its events, as plain data, with accounts of its failures.

:class:`Novelty` notes when anything was new, which decides whether a run is worth going on.
"""

from __future__ import annotations

import time
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from fuzz_attn.backends import kernel_coverage
from fuzz_attn.backends.kernel_coverage import KernelConfigurations, Mask, Outcome, TargetCoverage
from fuzz_attn.case.aspect_table import FEATURE_OF_WORDS, NotDrawn
from fuzz_attn.case.contract_trial import REFUSED, is_refused, trial_of
from fuzz_attn.case.plain import Finite, Plain, Seconds, Whole
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.events import (
    CaseExcused,
    CaseJudged,
    CaseNotCompiled,
    CaseRefused,
    CaseUnfinished,
    CaseUnsupported,
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Finished,
    RefusalReduced,
    RoundCompiled,
    Started,
    Which,
    WorkerLost,
    WorkerReady,
    name_of,
)
from fuzz_attn.engine.failures.triage import OUTPUT, UNWRITTEN, class_of, has_place
from fuzz_attn.engine.orders import Order
from fuzz_attn.operations.registry import AnyCase, operation_of
from fuzz_attn.oracle.verdict import Refusal, Verdict

EITHER = "output or unwritten"
"""A wrong fp8 output: a NaN there has the bits of an element that was never written."""


@dataclass
class _Row:
    """A failure: how many cases showed it, and every class that it has stood for."""

    cases: int = 1
    classes: set[str] = field(default_factory=set)

    def add(self, found: Counterexample) -> None:
        found_as = () if found.elsewhere is None else found.elsewhere.found_as
        self.classes |= {_without_words(name) for name in (class_of(found.verdict), *found.also, *found_as)}

    def covers(self, failure_class: str) -> bool:
        wanted = {OUTPUT, UNWRITTEN} if failure_class == EITHER else {failure_class}
        return not wanted.isdisjoint(self.classes)


class Accounts:
    """Counts failing cases and what they are counted as, for each class of failure; call it with each event."""

    def __init__(self) -> None:
        self.failing = 0
        """Cases of the search, and saved ones, that failed."""
        self.excused = 0
        """Cases that failed in a process that had judged others, and passed in a fresh one."""
        self._shown: Counter[str] = Counter()
        """How many of them showed a class; a saved case that is run several times counts once."""
        self._saved: set[tuple[Order, str]] = set()
        self._not_repeated: Counter[str] = Counter()
        self._rows: dict[Which, _Row] = {}
        self._names: dict[str, Which] = {}

    @property
    def lost(self) -> int:
        """How many failed verdicts no failure and no excuse accounts for; in the middle of a run they may follow."""
        return sum(max(0, cases - self._accounted(name)) for name, cases in self._shown.items())

    def _accounted(self, failure_class: str) -> int:
        rows = {id(row): row for row in self._rows.values()}.values()
        return self._not_repeated[failure_class] + sum(row.cases for row in rows if row.covers(failure_class))

    def __call__(self, event: Event) -> None:
        """Count an event."""
        match event:
            case CaseJudged() if event.phase in ("saved", "search"):
                self._judged(event)
            case CaseExcused():
                self.excused += 1
                self._not_repeated[_without_words(class_of(event.verdict))] += event.judged
            case FailureFound():
                self._row(event).add(event.counterexample)
            case FailureChanged():
                self._row(event).add(event.counterexample)
                if event.same_as:
                    self._unite(event)
            case FailureSeenAgain():
                row = self._known(event.which, event.path)
                if row is not None:
                    row.cases += event.cases

    def _judged(self, event: CaseJudged) -> None:
        classes = {_without_words(class_of(verdict)) for verdict in event.verdicts if not verdict.passed}
        if operation_of(event.order.case).has_fp8_output(event.order.case) and classes & {OUTPUT, UNWRITTEN}:
            classes = classes - {OUTPUT, UNWRITTEN} | {EITHER}
        self.failing += bool(classes)
        if event.phase == "saved":
            classes = {name for name in classes if (event.order, name) not in self._saved}
            self._saved |= {(event.order, name) for name in classes}
        self._shown.update(classes)

    def _row(self, event: FailureFound | FailureChanged) -> _Row:
        name = event.shard, event.failure
        self._names[name_of(event.shard, event.failure, event.path)] = name
        return self._rows.setdefault(name, _Row())

    def _known(self, which: Which | None, path: str) -> _Row | None:
        """Return the row of a failure, which logs of earlier versions name by its path only."""
        name = which if which in self._rows else self._names.get(path)
        return None if name is None else self._rows.get(name)

    def _unite(self, event: FailureChanged) -> None:
        """Let a failure and the one that it turned out to be have one row."""
        own, other = self._rows[event.shard, event.failure], self._known(event.same, event.same_as)
        if other is None or other is own:
            return
        other.cases += own.cases
        other.classes |= own.classes
        for name in [name for name, row in self._rows.items() if row is own]:
            self._rows[name] = other


def _without_words(failure_class: str) -> str:
    """Return the line of a class that names one: a finding and an exception at the same line may be one failure."""
    return failure_class.rpartition(" ")[2] if has_place(failure_class) else failure_class


PLAIN = "none of these"
"""Counted as the feature of a case that has none."""

Key = TypeVar("Key", int, str)


class Statistics(Plain, frozen=True, omit_defaults=False):
    """Counts of one shard, or of all shards of a target together.

    - ``cases`` were launched while searching, ``shrinking`` to shrink a failure.
    - ``served`` cases look like what people serve.
    - ``not_drawn`` says why no case had a feature of the family.
    - ``refusals`` count the cases that the target or the compiler refused. ``unsupported`` maps what the backend cannot
      run to its number of cases; they are among ``cases`` where another backend judged them.
    - ``not_judged`` cases have no verdict, because the backend could not run them and no other one was allowed.
    - ``failing`` cases failed in the search or in a saved file; ``lost`` failed verdicts of them are in no failure.
    - ``excused`` cases failed in a process that had judged others, and passed in a fresh one.
    - ``unfinished`` launches were still running when the time was up, for ``unfinished_seconds`` at most.
    - ``compile_keys`` maps the number of each compile key to its number of cases.
    - ``features`` maps each feature to its number of cases; a case without any counts as :data:`PLAIN`.
    - ``relations`` maps each metamorphic relation to its number of cases.
    - ``contracts`` maps what became of contract trials to their number: ``right``, ``refused`` or ``failed``.
    - ``ratios`` maps each output dtype to the largest ``err / bound`` of a passing case.
    - ``kernels_compiled`` and ``kernels_loaded`` count the kernels that Triton compiled or found compiled by an earlier
      process, shrinking included; workers do not share their counts.
    - ``kernels_ahead`` counts the kernels that were compiled ahead of their cases, ``kernels_kept`` those that an
      earlier run had compiled. ``not_compiled`` cases were dropped, because they needed another kernel. The shards
      waited for ``waited`` seconds in sum for that, and ``judging`` seconds for their workers, of these ``compiling``
      for the compiler of a worker.
    - ``shrinking_now`` failures are being confirmed or shrunk.
    - ``configurations`` are those of autotuned kernels, left by pruning and launched, shrinking included.
    - ``unexercised`` names optional arguments of the target that no case had.
    - ``masks`` holds the outcomes of the kernels' masks in all launches, shrinking included; ``outcomes`` is their
      number.
    """

    target: str
    backend: str = ""
    seed: int = 0
    shards: Whole = 1
    seconds: Seconds = 0.0
    cases: Whole = 0
    served: Whole = 0
    shrinking: Whole = 0
    deaths: Whole = 0
    unfinished: Whole = 0
    unfinished_seconds: Seconds = 0.0
    compile_keys: dict[int, Whole] = msgspec.field(default_factory=dict)
    kernels_compiled: Whole = 0
    kernels_loaded: Whole = 0
    kernels_ahead: Whole = 0
    kernels_kept: Whole = 0
    not_compiled: Whole = 0
    waited: Seconds = 0.0
    judging: Seconds = 0.0
    compiling: Seconds = 0.0
    features: dict[str, Whole] = msgspec.field(default_factory=dict)
    relations: dict[str, Whole] = msgspec.field(default_factory=dict)
    contracts: dict[str, Whole] = msgspec.field(default_factory=dict)
    ratios: dict[str, Finite] = msgspec.field(default_factory=dict)
    shims: tuple[str, ...] = ()
    not_drawn: NotDrawn = msgspec.field(default_factory=dict)
    refusals: tuple[CountedRefusal, ...] = ()
    unsupported: dict[str, Whole] = msgspec.field(default_factory=dict)
    not_judged: Whole = 0
    failing: Whole = 0
    lost: Whole = 0
    excused: Whole = 0
    counterexamples: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    shrinking_now: Whole = 0
    configurations: tuple[KernelConfigurations, ...] = ()
    unexercised: tuple[str, ...] = ()
    masks: tuple[Mask, ...] = ()
    outcomes: Whole = 0

    @property
    def refused(self) -> int:
        """Cases that the target or the compiler refused."""
        return sum(refused.cases for refused in self.refusals)

    @property
    def judged_share(self) -> float:
        """The part of the cases that has a verdict: the others were refused, or no backend could run them."""
        return self.cases / max(1, self.cases + self.refused + self.not_judged)

    @property
    def fallback(self) -> str:
        """The first operation that the backend could not run; empty while there is none."""
        return next(iter(self.unsupported), "")

    @property
    def coverage(self) -> TargetCoverage:
        """The target's part of the file ``coverage.json``."""
        return TargetCoverage(self.target, self.backend, self.fallback, self.cases, self.masks)


@dataclass
class Tally:
    """Counts the events of a run; call it with each. Most fields are those of :class:`Statistics`."""

    target: str = ""
    backend: str = ""
    seed: int = 0
    shards: int = 1
    seconds: float = 0.0
    cases: int = 0
    served: int = 0
    shrinking: int = 0
    deaths: int = 0
    unfinished: int = 0
    unfinished_seconds: float = 0.0
    compile_keys: Counter[int] = field(default_factory=Counter)
    kernels_compiled: int = 0
    kernels_loaded: int = 0
    kernels_ahead: int = 0
    kernels_kept: int = 0
    not_compiled: int = 0
    waited: float = 0.0
    judging: float = 0.0
    compiling: float = 0.0
    features: Counter[str] = field(default_factory=Counter)
    relations: Counter[str] = field(default_factory=Counter)
    contracts: Counter[str] = field(default_factory=Counter)
    ratios: dict[str, float] = field(default_factory=dict)
    shims: tuple[str, ...] = ()
    not_drawn: NotDrawn = field(default_factory=dict)
    refusals: tuple[CountedRefusal, ...] = ()
    unsupported: Counter[str] = field(default_factory=Counter)
    not_judged: int = 0
    configurations: tuple[KernelConfigurations, ...] = ()
    unexercised: tuple[str, ...] = ()
    masks: tuple[Mask, ...] = ()
    outcomes: int = 0
    _accounts: Accounts = field(default_factory=Accounts)
    _began: float | None = None
    _paths: dict[tuple[int, int], str] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _running: set[int] = field(default_factory=set)
    _open: set[tuple[int, int]] = field(default_factory=set)

    def __call__(self, event: Event) -> None:
        """Count an event."""
        self._accounts(event)
        match event:
            case Started():
                self.target, self.seed, self.shards = event.target, event.seed, event.workers
            case WorkerReady():
                self._add_worker(event)
            case CaseJudged():
                self._add_case(event)
            case CaseRefused() if event.phase in ("saved", "search"):
                self.refusals = counted(self.refusals, event.refusal, cases=1)
            case RefusalReduced():
                self._add_rule(event)
            case CaseUnsupported():
                self.unsupported[event.operation] += 1
                self.not_judged += not event.instead and event.phase in ("saved", "search")
            case CaseUnfinished():
                self.unfinished += 1
                self.unfinished_seconds = max(self.unfinished_seconds, event.seconds)
            case CaseNotCompiled():
                self.not_compiled += 1
            case RoundCompiled():
                self.kernels_ahead += event.compiled
                self.kernels_kept += event.loaded
            case WorkerLost():
                self.deaths += 1
            case FailureFound() | FailureChanged():
                self._add_failure(event)
            case Finished():
                self._finish(event)

    def _finish(self, event: Finished) -> None:
        self.waited += event.waited
        self._open = {name for name in self._open if name[0] != event.shard}  # an interrupt may have left some
        if event.shard in self._running:  # the time of the whole run includes the start of the workers
            self._running.discard(event.shard)
            self.seconds = max(self.seconds, event.seconds)

    def _add_worker(self, event: WorkerReady) -> None:
        if self._began is None:
            self._began = time.monotonic()
        self._running.add(event.shard)
        ready = event.ready
        self.backend, self.shims = ready.backend, ready.shims
        self.not_drawn |= ready.not_drawn
        self.unexercised = ready.unexercised

    def _add_rule(self, event: RefusalReduced) -> None:
        """Count a refused combination; a single feature is not drawn from then on."""
        self.refusals = counted(self.refusals, event.refusal, combination=event.combination)
        if len(event.combination) == 1 and event.combination[0] in FEATURE_OF_WORDS:
            self.not_drawn[FEATURE_OF_WORDS[event.combination[0]]] = "refused"

    def _add_case(self, event: CaseJudged) -> None:
        self.kernels_compiled += event.compiled
        self.kernels_loaded += event.loaded
        self.judging += event.seconds
        self.compiling += event.compiling
        if event.masks:  # nearly always there are no new ones
            self.masks = kernel_coverage.merged((*self.masks, *event.masks))
            self.outcomes = kernel_coverage.outcomes(self.masks)
        if event.configurations:
            self.configurations = kernel_coverage.merged_configurations((*self.configurations, *event.configurations))
        if event.phase in ("confirm", "shrink"):
            self.shrinking += 1
        else:
            self._add_drawn(event.order.case, event.order.relation, event.verdicts[0])

    def _add_drawn(self, case: AnyCase, relation: str | None, verdict: Verdict) -> None:
        operation = operation_of(case)
        if is_refused(case, verdict.message):
            self.contracts[REFUSED] += 1
            return
        if trial_of(case) is not None:
            self.contracts["right" if verdict.passed else "failed"] += 1
        self.cases += 1
        self.served += operation.is_served(case)
        self.compile_keys[case.compile_key.number] += 1
        self.features.update(operation.features_of(case) or (PLAIN,))
        if relation:
            self.relations[relation] += 1
        if verdict.passed and verdict.ratio is not None:
            dtype = operation.ratio_type(case)
            self.ratios[dtype] = max(self.ratios.get(dtype, 0.0), verdict.ratio)

    def _add_failure(self, event: FailureFound | FailureChanged) -> None:
        name = event.shard, event.failure
        if event.counterexample.status == "known":
            self._known.add(event.path)
        if isinstance(event, FailureChanged) and event.done:
            self._open.discard(name)
        else:
            self._open.add(name)
        if isinstance(event, FailureChanged) and event.same_as:
            self._paths.pop(name, None)
        else:
            self._paths[name] = event.path

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        values: dict[str, Any] = {
            name: dict(value) if isinstance(value, dict) else value
            for name, value in vars(self).items()
            if not name.startswith("_")
        }
        if self._running and self._began is not None:
            values["seconds"] = time.monotonic() - self._began
        values["shrinking_now"] = len(self._open)
        paths = set(self._paths.values())
        open_paths, known = tuple(sorted(paths - self._known)), tuple(sorted(paths & self._known))
        accounts = self._accounts
        values |= {"failing": accounts.failing, "lost": accounts.lost, "excused": accounts.excused}
        return Statistics(**values, counterexamples=open_paths, known=known)


def merged(parts: Iterable[Statistics]) -> Statistics | None:
    """Return the statistics of all shards of one target together; None when there are none."""
    shards = list(parts)
    if not shards:
        return None
    first = shards[0]
    masks = kernel_coverage.merged(mask for shard in shards for mask in shard.masks)
    return Statistics(
        target=first.target,
        backend=first.backend,
        seed=first.seed,
        shards=sum(shard.shards for shard in shards),
        seconds=max(shard.seconds for shard in shards),
        cases=sum(shard.cases for shard in shards),
        served=sum(shard.served for shard in shards),
        shrinking=sum(shard.shrinking for shard in shards),
        deaths=sum(shard.deaths for shard in shards),
        unfinished=sum(shard.unfinished for shard in shards),
        unfinished_seconds=max(shard.unfinished_seconds for shard in shards),
        compile_keys=_sums(shard.compile_keys for shard in shards),
        kernels_compiled=sum(shard.kernels_compiled for shard in shards),
        kernels_loaded=sum(shard.kernels_loaded for shard in shards),
        kernels_ahead=sum(shard.kernels_ahead for shard in shards),
        kernels_kept=sum(shard.kernels_kept for shard in shards),
        not_compiled=sum(shard.not_compiled for shard in shards),
        waited=sum(shard.waited for shard in shards),
        judging=sum(shard.judging for shard in shards),
        compiling=sum(shard.compiling for shard in shards),
        features=_sums(shard.features for shard in shards),
        relations=_sums(shard.relations for shard in shards),
        contracts=_sums(shard.contracts for shard in shards),
        ratios=_maxima(shard.ratios for shard in shards),
        shims=first.shims,
        not_drawn=dict(ChainMap(*(shard.not_drawn for shard in shards))),
        refusals=merged_refusals(refused for shard in shards for refused in shard.refusals),
        unsupported=_sums(shard.unsupported for shard in shards),
        not_judged=sum(shard.not_judged for shard in shards),
        failing=sum(shard.failing for shard in shards),
        lost=sum(shard.lost for shard in shards),
        excused=sum(shard.excused for shard in shards),
        counterexamples=tuple(sorted({path for shard in shards for path in shard.counterexamples})),
        known=tuple(sorted({path for shard in shards for path in shard.known})),
        configurations=kernel_coverage.merged_configurations(each for shard in shards for each in shard.configurations),
        unexercised=first.unexercised,
        masks=masks,
        outcomes=kernel_coverage.outcomes(masks),
    )


def _sums(counts: Iterable[dict[Key, int]]) -> dict[Key, int]:
    total: Counter[Key] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def _maxima(numbers: Iterable[dict[str, float]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for shard in numbers:
        for name, number in shard.items():
            largest[name] = max(largest.get(name, 0.0), number)
    return largest


class CountedRefusal(Plain, frozen=True):
    """One place that refuses: how many cases it refused and which combinations, each as features and sizes in words.

    ``refusal`` is that of the first case. An empty combination is refused whatever else the case has.
    """

    refusal: Refusal
    cases: Whole = 0
    combinations: tuple[tuple[str, ...], ...] = ()


def counted(
    refusals: Iterable[CountedRefusal], refusal: Refusal, *, cases: int = 0, combination: tuple[str, ...] | None = None
) -> tuple[CountedRefusal, ...]:
    """Return the counts with more cases or another combination of a refusal, the most frequent first."""
    combinations = () if combination is None else (combination,)
    return merged_refusals((*refusals, CountedRefusal(refusal, cases, combinations)))


def merged_refusals(refusals: Iterable[CountedRefusal]) -> tuple[CountedRefusal, ...]:
    """Return the counts of several shards together, the most frequent first."""
    by_site: dict[tuple[str, str, str], CountedRefusal] = {}
    for each in refusals:
        known = by_site.get(each.refusal.site, CountedRefusal(each.refusal))
        combinations = _smallest(dict.fromkeys((*known.combinations, *each.combinations)))
        by_site[each.refusal.site] = msgspec.structs.replace(
            known, cases=known.cases + each.cases, combinations=combinations
        )
    return tuple(sorted(by_site.values(), key=lambda each: -each.cases))


def _smallest(combinations: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the combinations that contain no other; an empty one, of a reduction without a result, comes last."""
    every = list(combinations)
    smallest = [each for each in every if not any(set(other) < set(each) for other in every if other)]
    return tuple(sorted(smallest, key=lambda each: not each))


class Novelty:
    """Notes the time of each event that shows a new compile key, failure signature or outcome of a mask.

    The time before the first worker is ready does not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None
        self._keys: set[int] = set()
        self._signatures: set[str] = set()
        self._outcomes: set[tuple[object, Outcome]] = set()

    def __call__(self, event: Event) -> None:
        """Note the time if the event shows anything new."""
        if self._is_new(event):
            self._last = self._clock()

    def seconds_without(self) -> float:
        """Return the seconds since anything was new."""
        return 0.0 if self._last is None else self._clock() - self._last

    def _is_new(self, event: Event) -> bool:
        before = self._known()
        match event:
            case WorkerReady():
                return self._last is None
            case CaseJudged():
                self._keys.add(event.order.case.compile_key.number)
                self._outcomes.update((mask.place, outcome) for mask in event.masks for outcome in mask.seen)
            case FailureFound() | FailureChanged():
                self._signatures.add(event.counterexample.signature)
        return self._known() > before

    def _known(self) -> int:
        return len(self._keys) + len(self._signatures) + len(self._outcomes)
