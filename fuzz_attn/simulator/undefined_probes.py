"""Probes: whether what a launch does depends on a number that an integer operation leaves undefined.

A launch that met one is run again from the same memory with other numbers in the place of undefined results. If it
stores, accesses or reports the same, the undefined numbers do not matter: masks and selections drop them. Only programs
with an operation that may be undefined are prepared for it, with copies of what they store to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.codegen.program import Plan
from fuzz_attn.simulator.execution import Run
from fuzz_attn.simulator.findings import Finding, FindingKind
from fuzz_attn.simulator.launch_arguments import watch_races
from fuzz_attn.simulator.runtime.elementwise import Seen
from fuzz_attn.simulator.runtime.memory import Memory

Array = npt.NDArray[Any]

MOST_COPIED: Final = 2**26
"""Bytes of tensors that are copied for probes at most; a launch that stores to larger ones is not probed."""

_GARBAGE: Final[tuple[Callable[[int], int], ...]] = (lambda width: -1, lambda width: (2 ** (width - 1) - 1) // 3)
"""The numbers that stand for undefined results, by width: what a GPU's division by 0 gives, and a large one."""


@dataclass(slots=True)
class Snapshot:
    """Copies of the memories that a launch stores to, and of what is known of their elements."""

    memories: Sequence[Memory]
    copies: list[tuple[Array, Array | None]]

    def restore(self) -> None:
        """Let the memories hold what they held."""
        for memory, (elements, written) in zip(self.memories, self.copies, strict=True):
            memory.flat[...] = elements
            if memory.written is not None and written is not None:
                memory.written[...] = written

    def differs(self) -> bool:
        """Return whether the memories now hold other bits."""
        return any(
            memory.flat.tobytes() != elements.tobytes()
            or (memory.written is not None and written is not None and not np.array_equal(memory.written, written))
            for memory, (elements, written) in zip(self.memories, self.copies, strict=True)
        )


def snapshot(memories: Sequence[Memory]) -> Snapshot | None:
    """Return copies of memories, None if they are too large."""
    if sum(memory.flat.nbytes for memory in memories) > MOST_COPIED:
        return None
    copies = [(one.flat.copy(), None if one.written is None else one.written.copy()) for one in memories]
    return Snapshot(memories, copies)


def probe(run: Run, plan: Plan, passed: list[Any], before: Snapshot) -> list[Finding]:
    """Return a finding for each line whose undefined results change what a finished run did; memory is as it was."""
    after = snapshot(before.memories)
    if after is None:
        return []
    seen = run.masks.seen.copy()
    try:
        sites = list(run.undefined.seen)
        if not _changed(run, plan, passed, before, after, sites):
            return []
        alone = [site for site in sites if _changed(run, plan, passed, before, after, [site])]
        return [_finding(run, site, run.undefined.seen[site]) for site in alone or sites[:1]]
    finally:
        after.restore()
        run.masks.seen[: len(seen)] = seen


def _changed(run: Run, plan: Plan, passed: list[Any], before: Snapshot, after: Snapshot, sites: Sequence[int]) -> bool:
    """Return whether the launch does something else with some garbage in the place of undefined results of lines."""
    for garbage in _GARBAGE:
        before.restore()
        again = Run(run.program, run.masks, run.grid, warps=run.warps)
        again.undefined.garbage = dict.fromkeys(sites, garbage)
        watch_races([one for one in passed if isinstance(one, Memory)], before.memories)
        try:
            again.execute(Plan(plan.scalars), passed)
        except Exception:  # noqa: BLE001 - such as a loop that garbage makes too long; the run had none
            return True
        if again.findings.keys() != run.findings.keys() or after.differs():
            return True
    return False


def _finding(run: Run, site: int, seen: Seen) -> Finding:
    message = f"{seen.words}: the result is undefined, and what the launch stores or accesses depends on it"
    place, program = run.program.sites[site], run.position(seen.program)
    kind = FindingKind.UNDEFINED_INTEGER
    return Finding(kind, run.program.name, place, program, "", 0, (0, 0), message, seen.count)
