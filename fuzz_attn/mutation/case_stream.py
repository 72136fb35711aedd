"""CaseStream: the cases of a default campaign on one core, in its order, as long as nothing fails."""

from __future__ import annotations

from typing import NamedTuple

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.engine.schedule import play_round, size_on_cpu
from fuzz_attn.engine.seeds import derived_seed


class DrawnCase(NamedTuple):
    """One case of a campaign with its metamorphic relation."""

    case: AttentionCase
    relation: str | None


class CaseStream:
    """The cases of ``fuzz-attn run --workers 1 --seed SEED``, drawn a round at a time and then kept."""

    def __init__(self, domain: Domain, seed: int) -> None:
        self._domain = domain
        self._seed = seed
        self._drawn: list[DrawnCase] = []
        self._rounds = 0

    def __getitem__(self, number: int) -> DrawnCase:
        """Return the case of that number, counted from 0; draws as many rounds as needed."""
        while len(self._drawn) <= number:
            self._draw_round()
        return self._drawn[number]

    def _draw_round(self) -> None:
        def keep(case: AttentionCase, relation: str | None) -> None:
            self._drawn.append(DrawnCase(case, relation))

        size = size_on_cpu(self._rounds)
        play_round(self._domain, derived_seed(self._seed, 0, self._rounds), size.cases, keep, size)
        self._rounds += 1
