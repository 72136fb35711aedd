"""The stream: the cases of a default campaign on one core, in its order, for as long as nothing fails."""

from __future__ import annotations

from typing import NamedTuple

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.engine.schedule import ON_CPU, derived_seed, play


class Drawn(NamedTuple):
    """One case of a campaign, and the relation that is asked of it."""

    case: AttentionCase
    relation: str | None


class Stream:
    """The cases of ``fuzz-attn run --workers 1 --seed SEED``, drawn a round at a time and then kept."""

    def __init__(self, domain: Domain, seed: int) -> None:
        self._domain = domain
        self._seed = seed
        self._drawn: list[Drawn] = []
        self._rounds = 0

    def __getitem__(self, number: int) -> Drawn:
        """Return the case at a place, counted from 0; draws as far as needed."""
        while len(self._drawn) <= number:
            self._draw_round()
        return self._drawn[number]

    def _draw_round(self) -> None:
        def keep(case: AttentionCase, relation: str | None) -> None:
            self._drawn.append(Drawn(case, relation))

        play(self._domain, derived_seed(self._seed, 0, self._rounds), ON_CPU.cases, keep)
        self._rounds += 1
