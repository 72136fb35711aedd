"""Known survivors: why changes of our kernels' IR survive, in words that a reader can check.

With them a new survivor stands out in a report. A file of reasons is TOML; each table is one reason with the changes
that it covers, identified by the text of their source line instead of its number. A reason explains; only one that
argues that no case at all can tell the change apart (``equivalent``) takes it out of the score, and each audit checks
that claim against what it saw.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.foreign_files import content_of
from fuzz_attn.mutation.audit_results import IrChange, Mutant, Outcome

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
