"""Generated lines that compute what nobody asks for, and what a function must be told: by the names in their text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_NAME = re.compile(r"\b[vr]\d+\b")
"""Variables that hold a result or its range; those that loops and branches assign are never dropped."""
_ASSIGNED = re.compile(r"\s*([vr]\d+) = ")
_EFFECT = "(run, "
"""What loads, reports or changes memory is handed the run; all else is only worth its result."""


def pruned(lines: list[str]) -> list[str]:
    """Return the lines without those whose result no later line uses. Blocks stay blocks, if need be of `pass`."""
    names = [_NAME.findall(line) for line in lines]
    uses = Counter(name for found in names for name in found)
    kept: list[str] = []
    for line, found in zip(reversed(lines), reversed(names), strict=True):
        assigned = _ASSIGNED.match(line)
        if assigned and uses[assigned.group(1)] == 1 and _EFFECT not in line:
            uses.subtract(found)
            continue
        if line.endswith(":") and not (kept and _indent(kept[-1]) > _indent(line)):
            kept.append(" " * (_indent(line) + 4) + "pass")
        kept.append(line)
    return kept[::-1]


def assigned_and_used(lines: Iterable[str], users: Iterable[str]) -> list[str]:
    """Return the variables that `lines` assign and `users` name, in order."""
    used = set(_NAME.findall("\n".join(users)))
    found = (_ASSIGNED.match(line) for line in lines)
    return list(dict.fromkeys(match.group(1) for match in found if match and match.group(1) in used))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
