"""Mutants: changed kernels that an audit judges, as plain data that crosses processes and files."""

from __future__ import annotations

from typing import Final

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
