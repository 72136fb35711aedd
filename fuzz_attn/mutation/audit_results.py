"""Results of an audit: the outcome of each mutant and seed, scores with their confidence, and the file of them.

Mutants are changed kernels that an audit judges, as plain data that crosses processes and files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from fuzz_attn.case.plain import Plain

IN_32_BITS: Final = "in 32 bits"
"""The change of a 64-bit product to a narrower one."""


class IrChange(Plain, frozen=True, order=True):
    """A change of one operation of the IR at one source line, in every compile key that has the operation there.

    Identified by kernel, file (with only its last folder, so that a name means the same on every machine), line,
    operation, the operation's number among those of that name at that line, and the change. ``kind`` is the class of
    such changes.
    """

    kernel: str
    file: str
    line: int
    operation: str
    ordinal: int
    change: str
    kind: str = ""

    @property
    def name(self) -> str:
        """The change in one word, unique and the same in every run."""
        place = f"{self.kernel}/{self.file}:{self.line}/{self.operation}#{self.ordinal}"
        return f"{place}/{self.change.replace(' ', '_')}"


class Mutant(Plain, frozen=True):
    """A changed kernel: a seeded bug of that name, or a change of the IR."""

    name: str
    ir_change: IrChange | None = None


VLLM: Final = "vllm"
FLASH_ATTENTION: Final = "flash_attention"
RULES: Final = (VLLM, FLASH_ATTENTION)
"""The names of the fixed tolerances that an audit evaluates."""
PROPERTIES: Final = ""
"""The name of the campaign's properties beside them."""

SCHEMA: Final = 2
CONFIDENCE: Final = 1.959963984540054
"""The normal distribution's quantile for 95 %."""

State: TypeAlias = Literal["killed", "survived", "unobserved", "equivalent", "invalid"]
"""What became of a mutant under one seed:

- ``killed``: some property failed in some case.
- ``survived``: the output had other bits in some case, and every property held.
- ``unobserved``: the output had the same bits in every case. This says nothing of other cases, so it counts as not
  found.
- ``equivalent``: unobserved under every seed, or stopped for its time, and a written argument says why no output can
  tell the mutant apart (:mod:`fuzz_attn.mutation.survivors`). Only these, and those without a kernel, leave the score.
- ``invalid``: the changed IR is no valid kernel."""


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
    """The outcome of one mutant under one seed.

    ``case`` is the number, from 1, of the case of the seed's default campaign that killed it. ``seconds`` is the time
    until then on one core: drawing, tensors and oracle of all cases so far, and the mutant's own launches. ``rules``
    holds the number of the case for each fixed tolerance that found the mutant.
    """

    mutant: Mutant
    state: State
    seed: int = 0
    property_name: str = ""
    kind: str = ""
    message: str = ""
    case: int = 0
    seconds: float = 0.0
    rules: dict[str, int] = msgspec.field(default_factory=dict)
    evidence: Evidence = Evidence()


class FalseAlarm(Plain, frozen=True, order=True):
    """A case, counted from 1, that the healthy target failed: by a fixed tolerance, or with "" by the properties."""

    rule: str
    seed: int
    case: int


class Audit(Plain, frozen=True):
    """A finished audit: one outcome for each seed and mutant.

    ``cases`` is the largest number of cases for a mutant and seed, ``ruled`` whether the fixed tolerances were
    evaluated too. ``healthy_cases`` is the number of cases that the healthy target was judged on. Mutants skip cases
    that it failed by its properties.
    """

    target: str
    family: str
    seeds: tuple[int, ...]
    cases: int
    seconds: float
    workers: int
    versions: dict[str, str]
    outcomes: tuple[Outcome, ...]
    ruled: bool = False
    healthy_cases: int = 0
    false_alarms: tuple[FalseAlarm, ...] = ()
    schema: int = SCHEMA


class Score(NamedTuple):
    """How many mutants were found, with the 95 % confidence interval of the share.

    With several seeds ``found`` is the mean over them. The interval takes the mutants as a sample of all possible ones;
    how much the seeds differ is told apart from it.
    """

    found: float
    of: int
    low: float
    high: float

    @property
    def percent(self) -> float | None:
        """The share in per cent, None where there is no mutant."""
        return 100.0 * self.found / self.of if self.of else None


def score(found: float, of: int) -> Score:
    """Return a score with Wilson's confidence interval."""
    if not of:
        return Score(0, 0, 0.0, 1.0)
    share, square = found / of, CONFIDENCE**2 / of
    middle = (share + square / 2) / (1 + square)
    half = CONFIDENCE / (1 + square) * math.sqrt(share * (1 - share) / of + square / (4 * of))
    return Score(found, of, max(0.0, middle - half), min(1.0, middle + half))


def by_mutant(outcomes: Iterable[Outcome]) -> list[tuple[Outcome, ...]]:
    """Return the outcomes that count, those of one mutant together: not those of equivalent or invalid mutants."""
    members: dict[Mutant, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.state not in ("equivalent", "invalid"):
            members.setdefault(outcome.mutant, []).append(outcome)
    return [tuple(each) for each in members.values()]


def times_found(outcomes: Sequence[Outcome]) -> int:
    """Return how many outcomes, of one mutant under several seeds, found it."""
    return sum(outcome.state == "killed" for outcome in outcomes)


def most_seen(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of a mutant with the most evidence."""
    return max(outcomes, key=lambda outcome: (outcome.evidence.reached, outcome.evidence.cases))


def own_score(outcomes: Iterable[Outcome]) -> Score:
    """Return the score of the campaign's properties."""
    return _mean_score(outcomes, lambda outcome: outcome.state == "killed")


def rule_score(outcomes: Iterable[Outcome], rule: str) -> Score:
    """Return the score of a fixed tolerance."""
    return _mean_score(outcomes, lambda outcome: rule in outcome.rules)


def _mean_score(outcomes: Iterable[Outcome], found: Callable[[Outcome], bool]) -> Score:
    mutants = by_mutant(outcomes)
    return score(math.fsum(fmean(map(found, each)) for each in mutants), len(mutants))


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
