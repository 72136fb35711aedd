"""Reasons: why known survivors survive, in words that a reader can check, so that a new survivor stands out.

A file of reasons is TOML: each table is one reason, with the changes that it covers. They are named by the text of
their source line and not by its number, and only for the built-in targets.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

import fuzz_attn
from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.mutation.results import Outcome
from fuzz_attn.mutation.subjects import Mutant

KERNELS: Final = Path(fuzz_attn.__file__).with_name("kernels")


class Spot(Plain, frozen=True):
    """Changes on one source line: ``operation#ordinal/change`` each, as in a mutant's name.

    ``source`` is the whole line in ``file`` below kernels/; ``kernels`` are the launched ones, none for any.
    """

    file: str
    source: str
    changes: tuple[str, ...]
    kernels: tuple[str, ...] = ()

    def covers(self, mutant: Mutant) -> bool:
        """Return whether a mutant is one of these changes."""
        return (
            mutant.file == self.file
            and f"{mutant.operation}#{mutant.ordinal}/{mutant.change}" in self.changes
            and (not self.kernels or mutant.kernel in self.kernels)
            and source_of(mutant) == self.source
        )


class Reason(Plain, frozen=True):
    """One reason, and where it holds."""

    because: str
    at: tuple[Spot, ...]
    name: str = ""

    def covers(self, mutant: Mutant) -> bool:
        """Return whether this is why a mutant survives."""
        return any(spot.covers(mutant) for spot in self.at)


class Sorted(NamedTuple):
    """Outcomes by what explains them."""

    explained: tuple[tuple[Reason, tuple[Outcome, ...]], ...]
    unexplained: tuple[Outcome, ...]


def source_of(mutant: Mutant) -> str:
    """Return the source line of a mutant of this project's kernels."""
    return linecache.getline(str(KERNELS / mutant.file), mutant.line).strip()


def load_reasons(path: Path) -> tuple[Reason, ...]:
    """Return the reasons of a file, none where there is no file; raises FuzzAttnError for one that cannot be read."""
    if not path.is_file():
        return ()
    try:
        tables = msgspec.toml.decode(path.read_bytes(), type=dict[str, Reason])
    except msgspec.DecodeError as error:
        raise FuzzAttnError(f"reasons {str(path)!r}: {error}") from error
    return tuple(msgspec.structs.replace(reason, name=name) for name, reason in tables.items())


def sort(outcomes: Iterable[Outcome], reasons: Sequence[Reason]) -> Sorted:
    """Return outcomes with the first reason that covers each, in the order of the reasons."""
    explained: dict[int, list[Outcome]] = {index: [] for index in range(len(reasons))}
    unexplained: list[Outcome] = []
    for outcome in outcomes:
        mutant = outcome.subject.mutant
        covering = (index for index, reason in enumerate(reasons) if mutant is not None and reason.covers(mutant))
        index = next(covering, None)
        (unexplained if index is None else explained[index]).append(outcome)
    pairs = ((reason, tuple(explained[index])) for index, reason in enumerate(reasons))
    return Sorted(tuple(pair for pair in pairs if pair[1]), tuple(unexplained))
