"""Mutants of the IR: a change of one operation at one source line, made in every compile key that has it there.

A kernel is lowered anew for each compile key, so one line of source becomes many operations; a mutant is all of those
that are alike (:class:`~fuzz_attn.mutation.subjects.Mutant`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath

from fuzz_attn.mutation.ir.operators import Change, Surroundings, changes_of
from fuzz_attn.mutation.ir.rewriting import rewritten, walk
from fuzz_attn.mutation.subjects import Mutant
from fuzz_attn.simulator.frontend.ir import Function, Operation


def mutants_of(function: Function) -> dict[Mutant, tuple[Operation, Change]]:
    """Return every mutant of a parsed kernel, with the operation to change and how; in the order of the text."""
    return _mutants(function)


@lru_cache(maxsize=512)
def _mutants(function: Function) -> dict[Mutant, tuple[Operation, Change]]:
    around = Surroundings(function)
    found: dict[Mutant, tuple[Operation, Change]] = {}
    ordinals: dict[tuple[str, int, str], int] = {}
    for operation in walk(function.blocks):
        file, line = "/".join(PurePath(operation.location.file).parts[-2:]), operation.location.line
        place = (file, line, operation.name)
        ordinals[place] = ordinal = ordinals.get(place, -1) + 1
        for change in changes_of(operation, around):
            mutant = Mutant(function.name, file, line, operation.name, ordinal, change.name, change.kind)
            found.setdefault(mutant, (operation, change))
    return found


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Makes a mutant of a parsed kernel where it has the mutant's operation, and leaves any other as it is."""

    mutant: Mutant | None = None
    probed: bool = False

    def __call__(self, function: Function) -> Function:
        """Return the mutated kernel, or the very same one."""
        if self.mutant is None or self.mutant.kernel != function.name:
            return function
        place = _mutants(function).get(self.mutant)
        if place is None:
            return function
        operation, change = place
        return rewritten(function, operation, change.build(), probed=self.probed)
