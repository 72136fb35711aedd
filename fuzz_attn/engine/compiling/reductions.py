"""Reductions: what the compile stage finds out about refusals, before they cost the shards of a run anything.

A rehearsed case that host code or Triton's front end refuses is reduced to the smallest refused combination, in a fork
that needs no GPU. All shards learn the rule, and the stage compiles nothing for compile keys that it excludes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from fuzz_attn.engine.compiling.rounds import Rounds
from fuzz_attn.engine.events import WHOLE_RUN, RefusalReduced
from fuzz_attn.operations.operation import FULL_ROUND, MOST_REDUCTIONS, Probe, Rule
from fuzz_attn.operations.registry import AnyCase, AnyDomain, operation_of
from fuzz_attn.properties.refusal import Site

if TYPE_CHECKING:
    from fuzz_attn.engine.compiling.rehearsal import Refused


class Reductions:
    """The rules of a run's compile stage, and the reductions that are under way.

    :meth:`wanted` says which refused cases to reduce, :meth:`reduce` does it in a fork, and :meth:`ended` takes what
    the fork has found.
    """

    def __init__(self, domain: AnyDomain, rounds: Rounds) -> None:
        self._refusals = operation_of(domain).refusals(domain)
        self._rounds = rounds
        self._under_way: dict[int, Site] = {}
        self._begun: Counter[Site] = Counter()
        self._next = -1

    def accepted(self, cases: Iterable[AnyCase]) -> None:
        """Note cases whose kernels are compiled; rules that exclude one are dropped."""
        for case in cases:
            self._refusals.judged(case)

    def excludes(self, key: Any, number: int) -> bool:
        """Return whether a round of a compile key need not be compiled; now and then it is, to check the rules."""
        return number % FULL_ROUND != FULL_ROUND - 1 and self._refusals.excludes_key(key)

    def wanted(self, refused: Iterable[Refused]) -> list[tuple[int, Refused]]:
        """Return the refused cases that no rule explains, each with the number of its reduction.

        No place is reduced twice at the same time, by the stage or a shard, because both would find the same rule.
        """
        return [
            (self._start(refusal.site), (order, refusal))
            for order, refusal in refused
            if self._is_new(order.case, refusal.site)
        ]

    def _is_new(self, case: AnyCase, site: Site) -> bool:
        busy = site in self._under_way.values() or self._begun[site] >= MOST_REDUCTIONS
        known = busy or any(rule.matches(case) for rule in self._refusals.rules)
        return not known and self._rounds.claim(site)

    def _start(self, site: Site) -> int:
        """Return the number of a new reduction, below those of rounds."""
        number, self._next = self._next, self._next - 1
        self._under_way[number] = site
        self._begun[site] += 1
        return number

    def is_under_way(self, site: Site) -> bool:
        """Return whether a place's refusal is being reduced."""
        return site in self._under_way.values()

    def reduce(self, refused: Refused, probe: Probe) -> bytes:
        """Return the rules that a refused case leads to, as bytes, in a fork."""
        order, refusal = refused
        rules = self._refusals.refused(order.case, refusal, probe)
        return msgspec.json.encode([self._refusals.told(rule)[1] for rule in rules])

    def ended(self, number: int, result: bytes) -> list[RefusalReduced]:
        """Take what a reduction has found, and tell the shards; a fork that died has found nothing."""
        site = self._under_way.pop(number)
        found = msgspec.json.decode(result, type=list[bytes]) if result else []
        rules = [rule for each in found if (rule := self._refusals.heard(each)) is not None]
        learned = [self._learned(rule) for rule in rules if self._learn(rule)]
        self._rounds.release(site)  # not before the shards can learn the rules
        return learned

    def _learn(self, rule: Rule) -> bool:
        self._refusals.learn([rule])
        return rule in self._refusals.rules

    def _learned(self, rule: Rule) -> RefusalReduced:
        self._rounds.tell(*self._refusals.told(rule))
        return RefusalReduced(WHOLE_RUN, rule.refusal, rule.words(self._refusals.full))
