"""Counts of refusals: how many cases each place of a target refused, and which combinations."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fuzz_attn.case.plain import Plain, Whole
from fuzz_attn.properties.refusal import Refusal


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
    return merged((*refusals, CountedRefusal(refusal, cases, combinations)))


def merged(refusals: Iterable[CountedRefusal]) -> tuple[CountedRefusal, ...]:
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
