"""Subjects: what an audit examines. Plain data, so that it crosses processes and files."""

from __future__ import annotations

from typing import Final

from fuzz_attn.case.plain import Plain

IN_32_BITS: Final = "in 32 bits"
"""The change of a 64-bit product to a narrower one."""


class Mutant(Plain, frozen=True, order=True):
    """A change of one operation of the IR at one source line, in every compile key that has it there.

    Named by kernel, file (without its folder, so that a name means the same on every machine), line, operation, its
    place among the operations of that name at that line, and the change; ``kind`` is the class of such changes.
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
        """The mutant in one word, unique and the same in every run."""
        place = f"{self.kernel}/{self.file}:{self.line}/{self.operation}#{self.ordinal}"
        return f"{place}/{self.change.replace(' ', '_')}"


class Subject(Plain, frozen=True):
    """What is examined: a specimen by its name, or a mutant of the IR."""

    name: str
    mutant: Mutant | None = None
