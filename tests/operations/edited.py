"""Edited: the kernel of an operation with a seeded bug, as a target, and the cases of a round."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.engine.schedule import play_round
from fuzz_attn.mutation.edited_kernels import target_with
from fuzz_attn.mutation.seeded_bugs import load_seeded_bugs
from fuzz_attn.operations.registry import OPERATIONS, AnyCase, AnyDomain
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.targets.target import Target

TABLES = Path(__file__).parents[2] / "fuzz_attn" / "mutation" / "seeded" / "tables"


@cache
def backend() -> SimulatorBackend:
    return SimulatorBackend()


class EditedKernel:
    """The kernel of an operation, which has the name of its only family, and the seeded bugs of it by their names."""

    def __init__(self, name: str) -> None:
        self.operation = OPERATIONS[name]
        self.bugs = {bug.name: bug for bug in load_seeded_bugs(TABLES) if name in bug.families}

    def target_with(self, bug: str, folder: Path) -> Target:
        """Return the kernel with one seeded bug."""
        return target_with(self.bugs[bug], self.operation.name, folder)

    def judged(self, target: Target, case: Any, relation: str | None = None) -> tuple[Verdict, ...]:
        """Return the failed verdicts on a case."""
        verdicts = self.operation.failures(self.operation.experiment(case, target, backend()), relation)
        return tuple(verdict for verdict in verdicts if not verdict.passed)


@cache
def drawn(domain: AnyDomain, seed: int, count: int) -> tuple[tuple[AnyCase, str | None], ...]:
    """Return the cases of a round and their relations."""
    found: list[tuple[AnyCase, str | None]] = []
    play_round(domain, seed, count, lambda case, relation: found.append((case, relation)))
    return tuple(found)
