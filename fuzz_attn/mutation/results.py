"""Results of an audit: what came of each mutant, the scores with their confidence, and the file that holds it all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from fuzz_attn.case.plain import Plain
from fuzz_attn.mutation.subjects import Subject

SCHEMA: Final = 1
CONFIDENCE: Final = 1.959963984540054
"""The normal distribution's quantile for 95 %."""

State: TypeAlias = Literal["killed", "equivalent", "survived", "invalid"]
"""``equivalent``: the same bits in all of at least a thousand cases that ran the changed operation. ``invalid``: the
change made something that is no kernel."""


class Evidence(Plain, frozen=True):
    """What the cases of a subject showed. ``cases`` had its operation in their kernels, ``reached`` also ran it.

    ``differed`` counts cases in which the operation gave another value, ``changed`` those in which the output had other
    bits than the healthy kernel's; ``ratio`` is the largest ``err / bound`` of one that passed.
    """

    cases: int = 0
    reached: int = 0
    differed: int = 0
    changed: int = 0
    ratio: float = 0.0


class Outcome(Plain, frozen=True):
    """What came of one subject.

    ``case`` is the place in the default campaign, from 1, of the case that killed it; ``seconds`` the time until then
    on one core: drawing, tensors and oracle of every case before it, and the subject's own launches. ``rules`` has the
    same place for each fixed tolerance that found it.
    """

    subject: Subject
    state: State
    property_name: str = ""
    kind: str = ""
    message: str = ""
    case: int = 0
    seconds: float = 0.0
    rules: dict[str, int] = msgspec.field(default_factory=dict)
    evidence: Evidence = Evidence()


class Audit(Plain, frozen=True):
    """An audit as it is kept.

    ``cases`` is how many each subject was given at most; ``ruled`` whether the fixed tolerances were asked too.
    ``healthy_cases`` is how many of the stream the healthy target was judged on, ``false_alarms`` the places of those
    that it failed, by rule, and by the properties under "": no subject was judged on these.
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
    """A share of mutants found, with its 95 % confidence interval."""

    found: int
    of: int
    low: float
    high: float

    @property
    def percent(self) -> float:
        """The share in per cent, 100 for none at all."""
        return 100.0 * self.found / self.of if self.of else 100.0


def score(found: int, of: int) -> Score:
    """Return a score with Wilson's interval."""
    if not of:
        return Score(0, 0, 0.0, 1.0)
    share, square = found / of, CONFIDENCE**2 / of
    middle = (share + square / 2) / (1 + square)
    half = CONFIDENCE / (1 + square) * math.sqrt(share * (1 - share) / of + square / (4 * of))
    return Score(found, of, max(0.0, middle - half), min(1.0, middle + half))


def counted(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes that a score counts: those of neither equivalent nor invalid mutants."""
    return [outcome for outcome in outcomes if outcome.state in ("killed", "survived")]


def own_score(outcomes: Iterable[Outcome]) -> Score:
    """Return the share that the campaign's properties found."""
    kept = counted(outcomes)
    return score(sum(outcome.state == "killed" for outcome in kept), len(kept))


def rule_score(outcomes: Iterable[Outcome], rule: str) -> Score:
    """Return the share that a fixed tolerance found."""
    kept = counted(outcomes)
    return score(sum(rule in outcome.rules for outcome in kept), len(kept))


def median_case(outcomes: Iterable[Outcome]) -> float | None:
    """Return after how many cases half of the found ones were found; None if none was."""
    places = [outcome.case for outcome in outcomes if outcome.state == "killed"]
    return median(places) if places else None


def save(audit: Audit, path: Path) -> None:
    """Write an audit as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(audit), indent=1) + b"\n")


def load(path: Path) -> Audit:
    """Return an audit that was saved."""
    return msgspec.json.decode(path.read_bytes(), type=Audit)
