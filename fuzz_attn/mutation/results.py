"""Results of an audit: the outcome of each mutant, scores with their confidence, and the file that holds them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from fuzz_attn.case.plain import Plain
from fuzz_attn.mutation.mutant import Mutant

VLLM: Final = "vllm"
FLASH_ATTENTION: Final = "flash_attention"
RULES: Final = (VLLM, FLASH_ATTENTION)
"""The names of the fixed tolerances that an audit evaluates."""
PROPERTIES: Final = ""
"""The name of the campaign's properties beside them."""

SCHEMA: Final = 1
CONFIDENCE: Final = 1.959963984540054
"""The normal distribution's quantile for 95 %."""

State: TypeAlias = Literal["killed", "equivalent", "survived", "invalid"]
"""``equivalent``: the same output bits in every one of at least a thousand cases that ran the changed operation.
``invalid``: the changed IR is no valid kernel."""


class Evidence(Plain, frozen=True):
    """What a mutant's cases showed.

    ``cases`` counts those with its operation in their kernels, ``reached`` those that also ran it, ``differed`` those
    where the operation gave another value, ``changed`` those where the output had other bits than the healthy kernel's.
    ``ratio`` is the largest ``err / bound`` of a case that passed.
    """

    cases: int = 0
    reached: int = 0
    differed: int = 0
    changed: int = 0
    ratio: float = 0.0


class Outcome(Plain, frozen=True):
    """The outcome of one mutant.

    ``case`` is the number, from 1, of the case of the default campaign that killed it. ``seconds`` is the time until
    then on one core: drawing, tensors and oracle of all cases so far, and the mutant's own launches. ``rules`` holds
    the number of the case for each fixed tolerance that found the mutant.
    """

    mutant: Mutant
    state: State
    property_name: str = ""
    kind: str = ""
    message: str = ""
    case: int = 0
    seconds: float = 0.0
    rules: dict[str, int] = msgspec.field(default_factory=dict)
    evidence: Evidence = Evidence()


class Audit(Plain, frozen=True):
    """A finished audit.

    ``cases`` is the largest number of cases for a mutant, ``ruled`` whether the fixed tolerances were evaluated too.
    ``healthy_cases`` is the number of cases that the healthy target was judged on. ``false_alarms`` holds the numbers
    of those that it failed, by fixed tolerance, and under "" by the campaign's properties; mutants skip the latter.
    """

    target: str
    family: str
    seed: int
    cases: int
    seconds: float
    workers: int
    versions: dict[str, str]
    outcomes: tuple[Outcome, ...]
    ruled: bool = False
    healthy_cases: int = 0
    false_alarms: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    schema: int = SCHEMA


class Score(NamedTuple):
    """How many mutants were found, with the 95 % confidence interval of the share."""

    found: int
    of: int
    low: float
    high: float

    @property
    def percent(self) -> float:
        """The share in per cent, 100 where there is no mutant."""
        return 100.0 * self.found / self.of if self.of else 100.0


def score(found: int, of: int) -> Score:
    """Return a score with Wilson's confidence interval."""
    if not of:
        return Score(0, 0, 0.0, 1.0)
    share, square = found / of, CONFIDENCE**2 / of
    middle = (share + square / 2) / (1 + square)
    half = CONFIDENCE / (1 + square) * math.sqrt(share * (1 - share) / of + square / (4 * of))
    return Score(found, of, max(0.0, middle - half), min(1.0, middle + half))


def counted(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes that count for a score: not those of equivalent or invalid mutants."""
    return [outcome for outcome in outcomes if outcome.state in ("killed", "survived")]


def own_score(outcomes: Iterable[Outcome]) -> Score:
    """Return the score of the campaign's properties."""
    kept = counted(outcomes)
    return score(sum(outcome.state == "killed" for outcome in kept), len(kept))


def rule_score(outcomes: Iterable[Outcome], rule: str) -> Score:
    """Return the score of a fixed tolerance."""
    kept = counted(outcomes)
    return score(sum(rule in outcome.rules for outcome in kept), len(kept))


def median_case(outcomes: Iterable[Outcome]) -> float | None:
    """Return the median number of cases until a mutant was found; None if none was."""
    cases = [outcome.case for outcome in outcomes if outcome.state == "killed"]
    return median(cases) if cases else None


def save(audit: Audit, path: Path) -> None:
    """Write an audit as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(audit), indent=1) + b"\n")


def load(path: Path) -> Audit:
    """Return a saved audit."""
    return msgspec.json.decode(path.read_bytes(), type=Audit)
