"""Changes of the IR across compile keys: one operation at one source line, changed wherever it occurs.

A kernel is lowered anew for each compile key, so one source line becomes many operations. An
:class:`~fuzz_attn.mutation.mutant.IrChange` is the same change of all of them that are alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath

from fuzz_attn.mutation.ir.operators import Change, KernelFacts, changes_of
from fuzz_attn.mutation.ir.rewriting import rewritten, walk
from fuzz_attn.mutation.mutant import IrChange
from fuzz_attn.ttir.ir import Function, Operation


@lru_cache(maxsize=512)
def changes_in(function: Function) -> dict[IrChange, tuple[Operation, Change]]:
    """Return every change of a parsed kernel, in the order of its text, with the operation to change and how."""
    facts = KernelFacts(function)
    found: dict[IrChange, tuple[Operation, Change]] = {}
    ordinals: dict[tuple[str, int, str], int] = {}
    for operation in walk(function.blocks):
        file, line = "/".join(PurePath(operation.location.file).parts[-2:]), operation.location.line
        place = (file, line, operation.name)
        ordinals[place] = ordinal = ordinals.get(place, -1) + 1
        for change in changes_of(operation, facts):
            key = IrChange(function.name, file, line, operation.name, ordinal, change.name, change.kind)
            found.setdefault(key, (operation, change))
    return found


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Makes a change in every parsed kernel that has its operation; other kernels stay as they are.

    ``probed`` adds probes that count whether the change makes a difference.
    """

    change: IrChange | None = None
    probed: bool = False

    def __call__(self, function: Function) -> Function:
        """Return the changed kernel, or the same object where there is nothing to change."""
        if self.change is None or self.change.kernel != function.name:
            return function
        found = changes_in(function).get(self.change)
        if found is None:
            return function
        operation, change = found
        return rewritten(function, operation, change.build(), probed=self.probed)
