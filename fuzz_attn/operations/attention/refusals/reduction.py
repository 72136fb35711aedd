"""Reduction: the smallest combination of features and sizes that a target refuses, found with a few probes.

A probe launches a case and returns its refusal. The refused case is made simple one attribute at a time; an attribute
that must stay for the refusal is needed. Then the other values of an attribute are tried, since also the simplest value
may be one of those refused: a target that takes heads of 64 and 128 only refuses nearly all cases for one reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from fuzz_attn.case.aspects import Aspect
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.compile_key import CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.dtypes import WIDE_DTYPES
from fuzz_attn.case.parts import DTypes
from fuzz_attn.errors import CaseError, OutOfProbesError
from fuzz_attn.operations.attention.refusals.attributes import (
    ATTRIBUTES,
    BY_NAME,
    Value,
    in_words,
    simplest,
    value_of_key,
    values_within,
)
from fuzz_attn.operations.operation import Probe
from fuzz_attn.properties.refusal import NOT_REDUCED, Refusal

TRIED_ELSEWHERE: Final = 5
"""How many values of an attribute are tried to find out whether it matters."""
_WIDE: Final = tuple(DTypes(q=name, kv=name, out=name) for name in WIDE_DTYPES)
COMMON: Final = (64, 128, 32)
"""Sizes that nearly every kernel takes."""


_DATA: Final = ("scores", "values", "near_uniform", "equal_heads", "key_marks", "overrides", "poison")


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
