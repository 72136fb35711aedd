"""Removal of statements that compute what no other statement reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fuzz_attn.simulator.codegen.tree.statements import Statement, walk


class Pruner:
    """Prunes the parts of a program, which run one after the other, the last part first."""

    def __init__(self) -> None:
        self._uses: Counter[str] = Counter()

    def pruned(self, part: list[Statement]) -> list[Statement]:
        """Return a part without statements whose result neither it nor a later part reads."""
        names: list[str] = []
        for statement in walk(part):
            statement.add_names(names)
        self._uses.update(names)
        return self._pruned(part)

    def _pruned(self, statements: list[Statement]) -> list[Statement]:
        """Return the block without unread results, the last statement first: what it reads may then be unread, too."""
        kept = []
        for statement in reversed(statements):
            if statement.result is not None and self._uses[statement.result] == 1:
                names: list[str] = []
                statement.add_names(names)
                self._uses.subtract(names)
                continue
            for block in reversed(statement.blocks):
                block[:] = self._pruned(block)
            kept.append(statement)
        return kept[::-1]

    def read_later(self, statements: Iterable[Statement]) -> list[str]:
        """Return the variables that statements define and the parts pruned so far read, in order."""
        defined = dict.fromkeys(statement.result for statement in statements)
        return [name for name in defined if name is not None and self._uses[name]]
