"""Range changes: what may stand in place of a number that is counted from the wrong begin, such as 0."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from fuzz_attn.simulator.condition_changes import Change, Conditions
from fuzz_attn.simulator.formulas import binary_in_words, in_words, is_known
from fuzz_attn.ttir.ir import Value

FORGOTTEN: Final = 0.9
"""The rank of a begin that is added, where the lines before it take it from an end: before a length without it."""

MOST_PARTS: Final = 40
"""How many of the values that a value is made of are looked at."""
IN_THE_WHOLE: Final = 1.9
"""The rank of a place in the whole batch for one within a part of it, such as a sequence."""
FROM_BEGIN: Final = "from "
"""How the name of such a change begins."""


class Ranges(Conditions):
    """Proposes what may stand in place of an integer that a function counts from 0 and not from its begin."""

    def from_begin(self) -> Iterator[Change]:
        """Yield a product plus what a factor of it is counted from, such as the begin of a range whose length it is.

        A length that is an end less a begin counts from that begin, and so must the begin of each of its parts.
        """
        if not self.is_result or self.operation.name != "arith.muli":
            return
        for begin in self._begins():
            new = binary_in_words("+", self.old, self.words(begin))
            yield self.with_other(f"{FROM_BEGIN}{self.label(begin)}", new, FORGOTTEN, np.add, begin)

    def in_the_whole(self) -> Iterator[Change]:
        """Yield an offset with another value for an operand: one that the kernel makes of it and of a begin."""
        if not self.is_result or self.operation.name != "arith.muli" or not self.addressed:
            return
        for index, operand in enumerate(self.operation.operands):
            part = self.root(operand)
            for value in self.site.known:
                maker = self.makers.get(value)
                if maker is None or maker.name != "arith.addi" or value.type.shape != part.type.shape:
                    continue
                begins = [each for each in maker.operands if self.root(each) is not part]
                if len(begins) == 1 and self.number(begins[0]) is None:
                    words = [self.words(each, 1) for each in self.operation.operands]
                    words[index] = f"({self.made(maker)})"
                    name = f"whole {index} {self.label(value)}"
                    compute = partial(self.with_operand, index, value)
                    yield self.change(name, in_words(self.operation, words), IN_THE_WHOLE, compute)

    def parts(self) -> set[Value]:
        """Return what the value is made of by known operations."""
        found, pending = set[Value](), [self.site.value]
        while pending and len(found) < MOST_PARTS:
            maker = self.makers.get(value := pending.pop())
            pending += maker.operands if value not in found and maker is not None and is_known(maker) else []
            found.add(value)
        return found

    def _begins(self) -> list[Value]:
        """Return the integers that are subtracted in what the value is made of, in the same call of its function."""
        found: dict[Value, Value] = {}
        parts = self.parts()
        for value in self.site.known:
            maker = self.makers.get(value) if value in parts else None
            if maker is None or maker.name != "arith.subi" or value.type.shape:
                continue
            begin = maker.operands[1]
            if maker.callers == self.operation.callers and self.number(begin) is None:
                found.setdefault(self.root(begin), begin)
        return list(found.values())
