"""Edited: the kernel of an operation with an edit, as a target, and the cases of a round."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.engine.schedule import play_round
from fuzz_attn.operations.registry import OPERATIONS, AnyCase, AnyDomain
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.targets.target import Target


@cache
def backend() -> SimulatorBackend:
    return SimulatorBackend()


class EditedKernel:
    """The healthy kernel of an operation, in a module whose launcher has the operation's name."""

    def __init__(self, name: str, healthy: ModuleType) -> None:
        self.operation = OPERATIONS[name]
        self._name = name
        self._source = Path(str(healthy.__file__)).read_text(encoding="utf-8")

    def target_with(self, old: str, new: str, folder: Path) -> Target:
        """Return the kernel with one edit."""
        assert self._source.count(old) == 1
        file = folder / "edited.py"
        file.write_text(self._source.replace(old, new).replace("from .common", "from fuzz_attn.kernels.common"))
        return self.operation.load_target(f"{file}:{self._name}", self._name, None)

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
