"""Attributes: the aspects of a case that a target may refuse, and the values that are worth trying in a domain."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, TypeAlias, cast

from fuzz_attn.case.aspects import ASPECTS, Aspect
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.compile_key import CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypes, LaunchHints
from fuzz_attn.strategies.compile_keys import values_in, values_of_key

Value: TypeAlias = Hashable


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
    return str(value)
