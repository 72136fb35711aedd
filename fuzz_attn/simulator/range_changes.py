"""Range changes: what may stand in place of the begin of a range whose length is a difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from fuzz_attn.simulator.condition_changes import Change, Conditions
from fuzz_attn.simulator.formulas import binary_in_words
from fuzz_attn.ttir.ir import Value

FORGOTTEN: Final = 0.9
"""The rank of a begin that is added, where the lines before it take it from an end: before a length without it."""

FROM_BEGIN: Final = "from "
"""How the name of such a change begins."""


class Ranges(Conditions):
    """Proposes what may stand in place of an integer that a function counts from 0 and not from its begin."""

    def from_begin(self) -> Iterator[Change]:
        """Yield a product plus what the function that computes it subtracts elsewhere, such as the begin of a range.

        A length that is an end less a begin counts from that begin, and so must the begin of each of its parts.
        """
        if not self.is_result or self.operation.name != "arith.muli":
            return
        for begin in self._begins():
            new = binary_in_words("+", self.old, self.words(begin))
            yield self.with_other(f"{FROM_BEGIN}{self.label(begin)}", new, FORGOTTEN, np.add, begin)

    def _begins(self) -> list[Value]:
        """Return the integers that were subtracted from others, in the same call of the same function."""
        found: dict[Value, Value] = {}
        for value in self.site.known:
            maker = self.makers.get(value)
            if maker is None or maker.name != "arith.subi" or value.type.shape:
                continue
            same = maker.callers == self.operation.callers and maker.location.file == self.operation.location.file
            begin = maker.operands[1]
            if same and self.number(begin) is None and begin is not self.site.value:
                found.setdefault(self.root(begin), begin)
        return list(found.values())
