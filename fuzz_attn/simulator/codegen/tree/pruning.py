"""Removal of statements that compute what no other statement reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fuzz_attn.simulator.codegen.tree.statements import Statement, walk


def pruned(parts: Sequence[list[Statement]]) -> list[list[Statement]]:
    """Return the parts of a program, which run one after the other, without statements whose result nothing reads."""
    uses: Counter[str] = Counter()
    for part in parts:
        for statement in walk(part):
            uses.update(statement.names())
    return [_pruned(part, uses) for part in reversed(parts)][::-1]


def _pruned(statements: list[Statement], uses: Counter[str]) -> list[Statement]:
    """Return the block without unread results, the last statement first: what it reads may then be unread, too."""
    kept = []
    for statement in reversed(statements):
        if statement.result is not None and uses[statement.result] == 1:
            uses.subtract(statement.names())
            continue
        for block in reversed(statement.blocks):
            block[:] = _pruned(block, uses)
        kept.append(statement)
    return kept[::-1]


def defined_and_read(before: Sequence[Statement], after: Sequence[Statement]) -> list[str]:
    """Return the variables that the statements `before` define and those `after` read, in order."""
    read = {name for statement in walk(after) for name in statement.names()}
    defined = (statement.result for statement in before)
    return [name for name in dict.fromkeys(defined) if name is not None and name in read]
