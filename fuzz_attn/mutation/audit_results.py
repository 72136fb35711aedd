"""Results of an audit: the outcome of each mutant and seed, scores with their confidence, and the file of them.

They come as messages from the workers of the audit. Survivors are known, with reasons.

Mutants are changed kernels that an audit judges, as plain data that crosses processes and files.

``fuzz_attn.engine.orders`` holds the ones that all workers share.
A file that survives a worker's death says which case and mutant it was at.

With them a new survivor stands out in a report. A file of reasons is TOML; each table is one reason with the changes
that it covers, identified by the text of their source line instead of its number. A reason explains; only one that
argues that no case at all can tell the change apart (``equivalent``) takes it out of the score, and each audit checks
that claim against what it saw.
"""

from __future__ import annotations

import linecache
import math
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.foreign_files import content_of
from fuzz_attn.operations.registry import FamilyName

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
  tell the mutant apart (:class:`Reason`). Only these, and those without a kernel, leave the score.
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


class AuditSetup(Plain, frozen=True):
    """The target of an audit, and two folders.

    ``seeded_bugs`` is the folder of TOML tables, empty where the IR is changed. ``scratch`` is the worker's own folder
    for its position and for edited kernels.
    """

    target: str
    family: FamilyName | None
    seeded_bugs: str
    scratch: str = ""


class Survey(Plain, frozen=True, tag="survey"):
    """Asks for every change of the IR of the kernels that the first ``cases`` of a seed launch."""

    seed: int
    cases: int


class Batch(Plain, frozen=True, tag="batch"):
    """Mutants to judge on a seed's first ``cases``; with ``rules``, until these fixed tolerances have found them too.

    With ``enough``, changed operations are watched, and a mutant is done once it ran its own in that many cases.
    """

    mutants: tuple[Mutant, ...]
    seed: int
    cases: int
    rules: tuple[str, ...] = ()
    enough: int = 0


class Surveyed(Plain, frozen=True, tag="surveyed"):
    """Every change of the IR, in the order of their names."""

    mutants: tuple[Mutant, ...]


class Finished(Plain, frozen=True, tag="finished"):
    """The outcome of one mutant."""

    outcome: Outcome


class Progress(Plain, frozen=True, tag="progress"):
    """How far a batch is: cases done, mutants left."""

    case: int
    left: int


class BatchDone(Plain, frozen=True, tag="batch_done"):
    """A batch is done. ``false_alarms`` are those of this process so far.

    ``healthy_cases`` is the number of cases of the batch's seed that the healthy target was judged on.
    """

    false_alarms: tuple[FalseAlarm, ...]
    seed: int
    healthy_cases: int


_FORMAT = struct.Struct("<qq")
NO_MUTANT = -1


class PositionFile:
    """A file with two numbers: that of the case in the stream and that of the mutant in its batch, both from 0."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT)

    def write(self, case: int, mutant: int) -> None:
        """Replace the two numbers."""
        os.pwrite(self._descriptor, _FORMAT.pack(case, mutant), 0)

    def read(self) -> tuple[int, int]:
        """Return the two numbers; ``NO_MUTANT`` where nothing was written."""
        written = os.pread(self._descriptor, _FORMAT.size, 0)
        case, mutant = _FORMAT.unpack(written) if written else (NO_MUTANT, NO_MUTANT)
        return int(case), int(mutant)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


KERNELS: Final = Path(__file__).parents[1] / "kernels"
OWN_REASONS: Final = Path(__file__).parents[2] / "tests" / "mutation" / "ir_survivors.toml"
"""The reasons for our own kernels: part of a checkout, and not of a wheel."""


Claim: TypeAlias = Literal["", "same value", "same output"]
"""What a reason claims of its changes, for every case that the contract allows.

- ``same value``: the changed operation gives the value that it gave before.
- ``same output``: it may give another value, which no output depends on and no sanitizer sees. It may take longer: a
  launch that was stopped for its time does not contradict the claim, as there is no output to compare.
- empty: nothing. The changes survive, and count as not found."""


class Spot(Plain, frozen=True):
    """Changes on one source line: ``operation#ordinal/change`` each, as in a mutant's name.

    ``source`` is the whole line in ``file`` below kernels/; the name of a file directly in there begins with
    ``kernels/``. ``kernels`` are the launched kernels, none for any.
    """

    file: str
    source: str
    changes: tuple[str, ...]
    kernels: tuple[str, ...] = ()

    def covers(self, change: IrChange) -> bool:
        """Return whether a change of the IR is one of these."""
        return (
            change.file == self.file
            and f"{change.operation}#{change.ordinal}/{change.change}" in self.changes
            and (not self.kernels or change.kernel in self.kernels)
            and source_of(change) == self.source
        )


class Reason(Plain, frozen=True):
    """One reason, the changes that it covers, and what it claims of them."""

    because: str
    at: tuple[Spot, ...]
    equivalent: Claim = ""
    name: str = ""

    def covers(self, change: IrChange) -> bool:
        """Return whether this is why a change survives."""
        return any(spot.covers(change) for spot in self.at)

    def refuted_by(self, outcome: Outcome) -> bool:
        """Return whether an outcome of a covered change contradicts the claim."""
        if not self.equivalent:
            return False
        if self.equivalent == "same output":
            told_apart = outcome.state == "killed" and outcome.kind != "timeout"
            return bool(outcome.evidence.changed) or told_apart or outcome.state == "survived"
        return bool(outcome.evidence.changed or outcome.evidence.differed) or outcome.state in ("killed", "survived")


class SortedSurvivors(NamedTuple):
    """Outcomes by the reason that explains them."""

    explained: tuple[tuple[Reason, tuple[Outcome, ...]], ...]
    unexplained: tuple[Outcome, ...]


def source_of(change: IrChange) -> str:
    """Return the source line of a change in this project's kernels."""
    return linecache.getline(str(KERNELS / change.file.removeprefix(f"{KERNELS.name}/")), change.line).strip()


def load_reasons(path: Path) -> tuple[Reason, ...]:
    """Return the reasons of a file; raises FuzzAttnError for a file that cannot be read."""
    try:
        tables = msgspec.toml.decode(content_of(path), type=dict[str, Reason])
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise FuzzAttnError(f"reasons {str(path)!r}: {error}") from error
    return tuple(msgspec.structs.replace(reason, name=name) for name, reason in tables.items())


def own_reasons() -> tuple[Reason, ...]:
    """Return the reasons for our own kernels; none in an installed package, which does not ship them."""
    return load_reasons(OWN_REASONS) if OWN_REASONS.is_file() else ()


def sort(outcomes: Iterable[Outcome], reasons: Sequence[Reason]) -> SortedSurvivors:
    """Return outcomes with the first reason that covers each, in the order of the reasons."""
    explained: dict[int, list[Outcome]] = {index: [] for index in range(len(reasons))}
    unexplained: list[Outcome] = []
    for outcome in outcomes:
        change = outcome.mutant.ir_change
        covering = (index for index, reason in enumerate(reasons) if change is not None and reason.covers(change))
        index = next(covering, None)
        (unexplained if index is None else explained[index]).append(outcome)
    pairs = ((reason, tuple(explained[index])) for index, reason in enumerate(reasons))
    return SortedSurvivors(tuple(pair for pair in pairs if pair[1]), tuple(unexplained))


def with_equivalents(outcomes: Sequence[Outcome], reasons: Sequence[Reason]) -> tuple[Outcome, ...]:
    """Return the outcomes, marked where a reason claims that the mutant is equivalent and no outcome refutes it."""
    claimed = _claimed(outcomes, reasons)
    equivalent = {mutant for mutant, (reason, each) in claimed.items() if not any(map(reason.refuted_by, each))}
    return tuple(
        msgspec.structs.replace(outcome, state="equivalent") if outcome.mutant in equivalent else outcome
        for outcome in outcomes
    )


def refuted(outcomes: Iterable[Outcome], reasons: Sequence[Reason]) -> list[tuple[Reason, Outcome]]:
    """Return each reason whose claim some outcome contradicts, with the first such outcome of each mutant."""
    found = []
    for reason, each in _claimed(outcomes, reasons).values():
        contradiction = next(filter(reason.refuted_by, each), None)
        if contradiction is not None:
            found.append((reason, contradiction))
    return found


def _claimed(outcomes: Iterable[Outcome], reasons: Sequence[Reason]) -> dict[Mutant, tuple[Reason, list[Outcome]]]:
    """Return for each mutant that some reason claims to be equivalent that reason and the mutant's outcomes."""
    claims = [reason for reason in reasons if reason.equivalent]
    found: dict[Mutant, tuple[Reason, list[Outcome]]] = {}
    reason_of: dict[Mutant, Reason | None] = {}
    for outcome in outcomes:
        change = outcome.mutant.ir_change
        if outcome.mutant not in reason_of:
            covering = (reason for reason in claims if change is not None and reason.covers(change))
            reason_of[outcome.mutant] = next(covering, None)
        reason = reason_of[outcome.mutant]
        if reason is not None:
            found.setdefault(outcome.mutant, (reason, []))[1].append(outcome)
    return found
