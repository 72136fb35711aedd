"""Telling: rules as bytes, so that what one shard has found out about refusals need not be found out by each."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

import msgspec

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.plain import Plain
from fuzz_attn.operations.attention.refusals.attributes import BY_NAME, values_within
from fuzz_attn.operations.attention.refusals.reduction import Condition, Rule
from fuzz_attn.properties.refusal import Refusal


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
