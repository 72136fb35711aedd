"""Refusals: which combinations of features and sizes a target refuses, so that a campaign draws them no longer.

:class:`Rules` keeps the combinations of a campaign and says what they exclude. :class:`Reduction` finds the smallest
one. Rules are told to other shards as bytes, so that each need not find them out again. An *attribute* is an aspect of
a case that a target may refuse.

A probe launches a case and returns its refusal. The refused case is made simple one attribute at a time; an attribute
that must stay for the refusal is needed. Then the other values of an attribute are tried, since also the simplest value
may be one of those refused: a target that takes heads of 64 and 128 only refuses nearly all cases for one reason.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from fuzz_attn.case import paths
from fuzz_attn.case.aspects import ASPECTS, Aspect, Feature
from fuzz_attn.case.attention_case import AttentionCase, CompileKey, replace
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import WIDE_DTYPES, DTypes, LaunchHints, is_fp8
from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import CaseError, DomainError, OutOfProbesError
from fuzz_attn.operations.operation import MOST_REDUCTIONS, Probe, Refusals
from fuzz_attn.oracle.verdict import NOT_REDUCED, Refusal, Stage
from fuzz_attn.strategies.compile_keys import values_in, values_of_key

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
TRIED_ELSEWHERE: Final = 5
"""How many values of an attribute are tried to find out whether it matters."""
_WIDE: Final = tuple(DTypes(q=name, kv=name, out=name) for name in WIDE_DTYPES)
COMMON: Final = (64, 128, 32)
"""Sizes that nearly every kernel takes."""
_DATA: Final = ("scores", "values", "near_uniform", "equal_heads", "key_marks", "overrides", "poison")

T = TypeVar("T")
Value: TypeAlias = Hashable


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
            size.bounds: _spelled(_left(single, size.refused_as, values), len(values), getattr(full, size.bounds))
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


def _spelled(left: tuple[int, ...], all_of_them: int, bounds: tuple[int, ...]) -> tuple[int, ...]:
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


class Condition(msgspec.Struct, frozen=True):
    """One attribute of a refused combination: it has one of ``values``, or is at least ``least``."""

    name: str
    values: frozenset[Value] = frozenset()
    least: int | None = None

    def holds(self, value: Value) -> bool:
        """Return whether a value of the attribute belongs to the combination."""
        if self.least is not None:
            return isinstance(value, int) and value >= self.least
        return value in self.values


class Rule(msgspec.Struct, frozen=True):
    """A refused combination: cases for which all conditions hold are refused.

    ``untried`` names the conditions that may not matter, since no probes were left to find out.
    """

    refusal: Refusal
    conditions: tuple[Condition, ...]
    untried: frozenset[str] = frozenset()

    def matches(self, case: CaseFields) -> bool:
        """Return whether a case has the combination; a rule without conditions would exclude everything."""
        return bool(self.conditions) and all(
            condition.holds(BY_NAME[condition.name].value(case)) for condition in self.conditions
        )

    def words(self, domain: Domain) -> tuple[str, ...]:
        """Return the conditions in words, by what is accepted where that is shorter.

        The untried ones would hide the others: :data:`NOT_REDUCED` stands for all of them.
        """
        needed = [each for each in self.conditions if each.name not in self.untried]
        words = tuple(_in_words(condition, BY_NAME[condition.name], domain) for condition in needed)
        return (*words, NOT_REDUCED) if self.untried else words

    def matches_key(self, key: CompileKey) -> bool:
        """Return whether every case of a compile key has the combination."""
        return bool(self.conditions) and all(_holds_for_key(condition, key) for condition in self.conditions)


def _holds_for_key(condition: Condition, key: CompileKey) -> bool:
    attribute = BY_NAME[condition.name]
    return bool(attribute.key) and condition.holds(value_of_key(attribute, key))


def _in_words(condition: Condition, attribute: Aspect, domain: Domain) -> str:
    if condition.least is not None:
        return f"{condition.least} {condition.name} or more" if condition.least > 1 else condition.name
    if all(isinstance(value, bool) for value in condition.values):
        return condition.name if True in condition.values else f"no {condition.name}"
    accepted = [value for value in values_within(attribute, domain) if value not in condition.values]
    if accepted and len(accepted) < len(condition.values):
        return f"{condition.name} other than {_listed(accepted)}"
    return f"{condition.name} {_listed(condition.values)}"


def _listed(values: Iterable[Value]) -> str:
    words = [in_words(value) for value in sorted(values, key=_rank)]
    return ", ".join(words[:-1]) + f" or {words[-1]}" if len(words) > 1 else words[0]


def _rank(value: Value) -> tuple[bool, object]:
    return (False, value) if isinstance(value, int) else (True, str(value))


class Reduction:
    """The reduction of one refused case; ``judged`` are cases that the target has not refused."""

    def __init__(
        self, case: AttentionCase, refusal: Refusal, domain: Domain, probe: Probe, judged: Iterable[AttentionCase]
    ) -> None:
        self.refusal = refusal
        self.domain = domain
        self.judged = judged
        self._probe = probe
        self._case = case
        self._needed: dict[str, Condition] = {}
        self._untried = dict.fromkeys(attribute.refused_as for attribute in ATTRIBUTES)

    def rule(self) -> Rule:
        """Return the smallest refused combination; one that runs out of probes keeps what was not tried."""
        try:
            self._simplify()
            self._try_values()
            self._heed_judged()
        except OutOfProbesError:
            pass
        untried = frozenset(self._untried.keys() - self._needed.keys())
        for name in untried:
            self._needed[name] = Condition(name, frozenset({BY_NAME[name].value(self._case)}))
        conditions = tuple(self._needed[name] for name in BY_NAME if name in self._needed)
        return Rule(self.refusal, conditions, untried)

    def _outcomes(self, cases: Sequence[AttentionCase | None]) -> list[bool | None]:
        """Return for each case whether it is refused at the place of the first one; None where no case is given.

        A case that is refused elsewhere may have passed the place.
        """
        launched = [case for case in cases if case is not None]
        found = iter(self._probe(launched) if launched else ())
        refusals = [None if case is None else next(found) for case in cases]
        same = [refusal is not None and refusal.site == self.refusal.site for refusal in refusals]
        return [None if case is None else outcome for case, outcome in zip(cases, same, strict=True)]

    def _changed(self, attribute: Aspect, value: Value, case: AttentionCase | None = None) -> AttentionCase | None:
        """Return the case with another value; None where the rest of the case does not allow it."""
        try:
            return attribute.having(case or self._case, value)
        except CaseError:
            return None

    def _simplify(self) -> None:
        """Make the case simple, one attribute at a time; what cannot be simple is needed.

        The attributes are tried side by side first, since most of them do not matter.
        """
        plain = {field.name: field.default for field in msgspec.structs.fields(CaseFields) if field.name in _DATA}
        numbers = replace(self._case, **plain)
        complex_ones = [each for each in ATTRIBUTES if each.value(self._case) != simplest(each, self.domain)]
        trials = [self._changed(each, simplest(each, self.domain), numbers) for each in complex_ones]
        first, *outcomes = self._outcomes([numbers, *trials])
        self._case = numbers if first else self._case
        together: AttentionCase | None = self._case
        for attribute, outcome in zip(complex_ones, outcomes, strict=True):
            if outcome and together is not None:
                together = self._changed(attribute, simplest(attribute, self.domain), together)
        self._becomes(together)
        for attribute in ATTRIBUTES:
            self._simplify_one(attribute)

    def _simplify_one(self, attribute: Aspect) -> None:
        value, least = attribute.value(self._case), simplest(attribute, self.domain)
        refused = value == least or self._becomes(self._changed(attribute, least))
        if refused is False and attribute.growing and isinstance(value, int):
            self._search(attribute, value)
        elif refused is False:
            self._needed[attribute.refused_as] = Condition(attribute.refused_as, frozenset({value}))
        if refused is False or len(values_within(attribute, self.domain)) == 1:
            del self._untried[attribute.refused_as]

    def _becomes(self, changed: AttentionCase | None) -> bool | None:
        """Go on with a changed case if it is refused at the same place; return its outcome."""
        refused = self._outcomes([changed])[0]
        if refused and changed is not None:
            self._case = changed
        return refused

    def _search(self, attribute: Aspect, refused: int) -> None:
        """Find the least refused size by bisection."""
        accepted = 1 if refused > 1 else refused - 1
        while refused - accepted > 1:
            middle = (accepted + refused) // 2
            if self._becomes(self._changed(attribute, middle)):
                refused = middle
            else:
                accepted = middle
        self._needed[attribute.refused_as] = Condition(attribute.refused_as, least=refused)

    def _try_values(self) -> None:
        """Find out which other values of each attribute are refused too: a few, and all where they matter."""
        tabled = [each for each in reversed(ATTRIBUTES) if len(values_within(each, self.domain)) > 1]
        for attribute in sorted(tabled, key=lambda each: each.refused_as not in self._needed):
            values = values_within(attribute, self.domain)
            self._try_values_of(attribute, values if attribute.refused_as in self._needed else _spread(values))
            self._untried.pop(attribute.refused_as, None)
        if not self._needed:  # the few may have missed the ones that are accepted
            for attribute in tabled:
                self._try_values_of(attribute, values_within(attribute, self.domain))

    def _try_values_of(self, attribute: Aspect, values: tuple[Value, ...]) -> None:
        found = self._outcomes_of(attribute, values)
        if False not in found.values() and attribute.refused_as not in self._needed:
            return
        found |= self._outcomes_of(attribute, values_within(attribute, self.domain))  # one was accepted, so all matter
        refused = {value for value, outcome in found.items() if outcome}
        self._needed[attribute.refused_as] = Condition(attribute.refused_as, frozenset(refused))

    def _outcomes_of(self, attribute: Aspect, values: Sequence[Value]) -> dict[Value, bool | None]:
        """Return the outcome of each value of an attribute, with that of the case itself."""
        outcomes = self._outcomes([self._changed(attribute, value) for value in values])
        return {**dict(zip(values, outcomes, strict=True)), attribute.value(self._case): True}

    def _heed_judged(self) -> None:
        """Add what tells the combination from the cases that were judged though they have it."""
        for case in self.judged:
            if not all(condition.holds(BY_NAME[name].value(case)) for name, condition in self._needed.items()):
                continue
            differing = [
                each
                for each in ATTRIBUTES
                if each.refused_as not in self._needed and each.value(case) != each.value(self._case)
            ]
            found = self._outcomes([self._changed(each, each.value(case)) for each in differing])
            for attribute, outcome in zip(differing, found, strict=True):
                if outcome is False:
                    known = frozenset({attribute.value(self._case)})
                    self._needed[attribute.refused_as] = Condition(attribute.refused_as, known)
                    break


def _spread(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return a few values of a table: common sizes, then some from all over it."""
    common = [value for value in values if value in COMMON or value in _WIDE]
    step = max(1, len(values) // TRIED_ELSEWHERE)
    return tuple(dict.fromkeys((*common, *values[::step])))[:TRIED_ELSEWHERE]


class _ToldCondition(Plain, frozen=True):
    """A condition whose values are JSON texts: they have several types."""

    name: str
    values: tuple[str, ...]
    least: int | None


class _ToldRule(Plain, frozen=True):
    refusal: Refusal
    conditions: tuple[_ToldCondition, ...]
    untried: tuple[str, ...]


def told(rule: Rule) -> tuple[str, bytes]:
    """Return a name that follows from a rule, and the rule as bytes."""
    conditions = tuple(
        _ToldCondition(each.name, tuple(sorted(map(_text, each.values))), each.least) for each in rule.conditions
    )
    found = msgspec.json.encode(_ToldRule(rule.refusal, conditions, tuple(sorted(rule.untried))))
    return hashlib.blake2b(found, digest_size=8).hexdigest(), found


def rule_of(found: bytes, domain: Domain) -> Rule | None:
    """Return a rule that another shard has told; None where it names a value that no attribute has in the domain."""
    read = msgspec.json.decode(found, type=_ToldRule)
    conditions = [_condition(each, domain) for each in read.conditions]
    kept = tuple(each for each in conditions if each is not None)
    return Rule(read.refusal, kept, frozenset(read.untried)) if len(kept) == len(conditions) else None


def _condition(read: _ToldCondition, domain: Domain) -> Condition | None:
    known = {_text(value): value for value in (*values_within(BY_NAME[read.name], domain), False, True)}
    values = frozenset(known[text] for text in read.values if text in known)
    return Condition(read.name, values, read.least) if len(values) == len(read.values) else None


def _text(value: Hashable) -> str:
    return msgspec.json.encode(value).decode()


def _frequency(aspect: Aspect) -> int:
    """Return a rank: what probes only remove, sizes that a target limits, features, what kernels are compiled for."""
    if aspect.feature in CaseFields.__struct_fields__:
        return 2
    return 3 if aspect.key else int(aspect.growing)


ATTRIBUTES: Final = tuple(sorted((aspect for aspect in ASPECTS if aspect.refused), key=_frequency))
"""Every attribute, in the order in which a reduction tries to make it simple: rare ones first."""

BY_NAME: Final = {aspect.refused_as: aspect for aspect in ATTRIBUTES}


def values_within(attribute: Aspect, domain: Domain) -> tuple[Any, ...]:
    """Return the values of an attribute worth trying in a domain, the simplest first.

    Those that are not tables have only the simplest: no target requires more sequences, or that some are skipped.
    """
    tabled = attribute.key and attribute.feature != "filter_by_query_len"
    return values_in(domain)[attribute.key] if tabled else (attribute.simplest,)


def simplest(attribute: Aspect, domain: Domain) -> Value:
    """Return the simplest value of an attribute in a domain."""
    return cast(Value, values_within(attribute, domain)[0])


def values_of(case: CaseFields) -> tuple[Value, ...]:
    """Return the value of every attribute, in their order."""
    return tuple(attribute.value(case) for attribute in ATTRIBUTES)


def value_of_key(attribute: Aspect, key: CompileKey) -> Value:
    """Return the value of an attribute that is compiled in the cases of a key."""
    return cast(Value, values_of_key(key).get(attribute.key, attribute.simplest))


def in_words(value: Value) -> str:
    """Return a value as a refusal names it."""
    if isinstance(value, LaunchHints):
        return f"3d with {value.num_segments} segments" if value.num_segments else value.path
    if isinstance(value, DTypes):
        same = value.q == value.kv == value.out
        return value.q if same else f"q {value.q} with cache {value.kv} and output {value.out}"
    if isinstance(value, tuple):
        return paths.in_words(value) or "at their defaults"
    return str(value)
