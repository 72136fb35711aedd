"""Rules: the refused combinations of a campaign, and which cases and compile keys they exclude."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from fuzz_attn.case.aspects import Feature
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.compile_key import CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.case.parts import DTypes
from fuzz_attn.errors import DomainError, OutOfProbesError
from fuzz_attn.operations.attention.refusals.attributes import ATTRIBUTES, BY_NAME, Value, values_of, values_within
from fuzz_attn.operations.attention.refusals.reduction import Condition, Reduction, Rule
from fuzz_attn.operations.attention.refusals.telling import rule_of, told
from fuzz_attn.operations.operation import MOST_REDUCTIONS, Probe, Refusals
from fuzz_attn.properties.refusal import Refusal, Stage

JUDGED_FOR_ONE: Final = 25
"""One excluded case is drawn for so many judged ones, so that a rule that excludes too much is found out."""
MOST_JUDGED: Final = 2000
"""The newest judged cases that are kept."""
MOST_TIME, LEAST_SECONDS = 0.2, 5.0
"""No reduction begins while earlier ones have taken more than this part of the time, and more than these seconds."""
PROBE_SECONDS: Final = 5.0
GRANTED: Final[dict[Stage, int]] = {"host": 160, "compile": 32}
MOST_PROBES: Final = 400
MOST_SECONDS: Final = 20.0
"""A reduction ends after so many seconds, however few probes it had: on a GPU each may compile kernels for seconds."""
PROBES_TOGETHER: Final[dict[Stage, int]] = {"host": 16, "compile": 1}
"""Probes of one message: fewer would wait for each other, and more would exceed the seconds."""

T = TypeVar("T")


class Rules(Refusals):
    """What a target refuses, as far as a campaign has found out, as rules that each exclude a combination."""

    def __init__(self, domain: Domain) -> None:
        super().__init__(domain)
        self._judged: deque[AttentionCase] = deque(maxlen=MOST_JUDGED)
        self._reductions: Counter[tuple[str, str, str]] = Counter()
        self._let_through = 0
        self._started = time.monotonic()
        self._reducing = 0.0
        """The seconds that reductions have taken."""

    def judged(self, case: AttentionCase) -> None:
        """Keep a case that the target does not refuse; a rule that excludes it is dropped."""
        super().judged(case)
        self._judged.append(case)
        wrong = [rule for rule in self.rules if rule.matches(case)]
        if wrong:
            self.rules = [rule for rule in self.rules if rule not in wrong]
            self.domain = self._narrowed()

    def refused(self, case: AttentionCase, refusal: Refusal, probe: Probe) -> tuple[Rule, ...]:
        """Return the rule that a refused case leads to, and those that this makes simpler.

        There is none if a rule is known for the case, if none can be found, or if there is no time for it.
        """
        if any(rule.matches(case) for rule in self.rules) or self._reductions[refusal.site] >= MOST_REDUCTIONS:
            return ()
        began = time.monotonic()
        if self._reducing > max(LEAST_SECONDS, MOST_TIME * (began - self._started)):
            return ()
        self._reductions[refusal.site] += 1
        newest_first = self._different_ones()
        rule = Reduction(case, refusal, self.full, _limited(probe, refusal), newest_first).rule()
        self._reducing += time.monotonic() - began
        if any(rule.matches(judged) for judged in newest_first):
            return ()
        before, self.rules = self.rules, [*self.rules, rule]
        self.rules = [self._without_vacuous(each) for each in self.rules]
        self.domain = self._narrowed()
        return tuple(each for each in self.rules if each not in before)

    def learn(self, rules: Iterable[Rule]) -> None:
        """Take over rules of other shards, except for those that exclude a judged case."""
        new = [rule for rule in rules if rule not in self.rules and not any(map(rule.matches, self._judged))]
        if new:
            self.rules = [*self.rules, *new]
            self.domain = self._narrowed()

    def _different_ones(self) -> list[AttentionCase]:
        """Return the newest judged case of each combination of attributes, the newest first."""
        found: dict[tuple[Value, ...], AttentionCase] = {}
        for case in reversed(self._judged):
            found.setdefault(values_of(case), case)
        return list(found.values())

    def _without_vacuous(self, rule: Rule) -> Rule:
        """Return a rule without conditions that other rules leave no choice in: what they accept is refused here."""
        kept = [each for each in rule.conditions if each.least is not None or self._accepted_beside(each)]
        return msgspec.structs.replace(rule, conditions=tuple(kept)) if kept else rule

    def _accepted_beside(self, condition: Condition) -> bool:
        """Return whether there is a value beside a condition's that no rule of one condition excludes."""
        single = [rule.conditions[0] for rule in self.rules if len(rule.conditions) == 1]
        values = values_within(BY_NAME[condition.name], self.full)
        if len(values) == 1:  # not a table of all values
            return True
        return any(not condition.holds(value) for value in _left(single, condition.name, values))

    def excludes(self, case: AttentionCase) -> bool:
        """Return whether a case need not be launched, since a rule says that it is refused; true for nearly all."""
        if not any(rule.matches(case) for rule in self.rules):
            return False
        if self.judged_cases >= JUDGED_FOR_ONE * (self._let_through + 1):
            self._let_through += 1
            return False
        return True

    def excludes_key(self, key: CompileKey) -> bool:
        """Return whether a rule says that every case of a compile key is refused."""
        return any(rule.matches_key(key) for rule in self.rules)

    def told(self, rule: Rule) -> tuple[str, bytes]:
        """Return a name that follows from a rule, and the rule as bytes."""
        return told(rule)

    def heard(self, found: bytes) -> Rule | None:
        """Return a rule that another shard has told; None where it names a value that no attribute has here."""
        return rule_of(found, self.full)

    def _narrowed(self) -> Domain:
        """Return the full domain without what rules of one condition exclude, as far as a domain can say it."""
        full: Domain = self.full
        single = [rule.conditions[0] for rule in self.rules if len(rule.conditions) == 1]
        features = full.features - {_feature_of(each.name) for each in single if False not in each.values}
        sizes = {
            size.bounds: _listed(_left(single, size.refused_as, values), len(values), getattr(full, size.bounds))
            for size in ATTRIBUTES
            if size.bounds
            for values in [values_within(size, full)]
        }
        types = _left(single, "type", values_within(BY_NAME["type"], full))
        wide = tuple(name for name in full.dtypes if any(name in (each.q, each.out) for each in types))
        try:
            return msgspec.structs.replace(full, features=features - _lost_types(types), dtypes=wide, **sizes)
        except DomainError:
            return full


def _feature_of(name: str) -> Feature | None:
    """Return the feature that cases have an attribute with, None where they have it with or without one."""
    return "strides" if name == "padding between rows" else BY_NAME[name].feature


def _left(conditions: list[Condition], name: str, values: tuple[T, ...]) -> tuple[T, ...]:
    """Return the values of an attribute that no condition on it excludes."""
    own = [condition for condition in conditions if condition.name == name]
    return tuple(value for value in values if not any(condition.holds(value) for condition in own))


def _listed(left: tuple[int, ...], all_of_them: int, bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes as a domain lists them, or its bounds where all are left; two sizes would be a range."""
    if not left or len(left) == all_of_them:
        return bounds
    return (min(left),) * max(0, 3 - len(left)) + tuple(sorted(left))


def _lost_types(types: tuple[DTypes, ...]) -> set[Feature]:
    """Return the features of fp8 that no accepted combination of types has."""
    found: dict[Feature, bool] = {
        "fp8_kv": any(is_fp8(each.kv) for each in types),
        "fp8_out": any(is_fp8(each.out) for each in types),
        "fp8_q": any(is_fp8(each.q) for each in types),
    }
    return {feature for feature, some in found.items() if not some}


def _limited(probe: Probe, refusal: Refusal) -> Probe:
    """Return a probe that ends a reduction after a number of cases or some seconds, and repeats no case.

    On a busy machine the seconds begin to count after some probes.
    """
    granted, together = GRANTED[refusal.stage], PROBES_TOGETHER[refusal.stage]
    started, known = time.monotonic(), dict[AttentionCase, Refusal | None]()

    def limited(cases: Sequence[AttentionCase]) -> list[Refusal | None]:
        new = [case for case in dict.fromkeys(cases) if case not in known]
        for first in range(0, len(new), together):
            seconds = time.monotonic() - started
            late = seconds >= (PROBE_SECONDS if len(known) >= granted else MOST_SECONDS)
            if late or len(known) >= MOST_PROBES:
                raise OutOfProbesError
            batch = new[first : first + together]
            known.update(zip(batch, probe(batch), strict=True))
        return [known[case] for case in cases]

    return limited
