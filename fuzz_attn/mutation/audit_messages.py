"""Messages between the workers of an audit and their parent: plain data, sent as JSON.

``fuzz_attn.engine.orders`` holds the ones that all workers share.
A file that survives a worker's death says which case and mutant it was at.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from fuzz_attn.case.plain import Plain
from fuzz_attn.mutation.audit_results import FalseAlarm, Mutant, Outcome
from fuzz_attn.operations.registry import FamilyName


class AuditSetup(Plain, frozen=True):
    """The target of an audit, and two folders.

    ``seeded_bugs`` is the folder of TOML tables, empty where the IR is changed. ``scratch`` is the worker's own folder
    for its position and for edited kernels.
    """

    target: str
    family: FamilyName | None
    seeded_bugs: str
    scratch: str = ""


class Survey(Plain, frozen=True, tag="survey"):
    """Asks for every change of the IR of the kernels that the first ``cases`` of a seed launch."""

    seed: int
    cases: int


class Batch(Plain, frozen=True, tag="batch"):
    """Mutants to judge on a seed's first ``cases``; with ``rules``, until these fixed tolerances have found them too.

    With ``enough``, changed operations are watched, and a mutant is done once it ran its own in that many cases.
    """

    mutants: tuple[Mutant, ...]
    seed: int
    cases: int
    rules: tuple[str, ...] = ()
    enough: int = 0


class Surveyed(Plain, frozen=True, tag="surveyed"):
    """Every change of the IR, in the order of their names."""

    mutants: tuple[Mutant, ...]


class Finished(Plain, frozen=True, tag="finished"):
    """The outcome of one mutant."""

    outcome: Outcome


class Progress(Plain, frozen=True, tag="progress"):
    """How far a batch is: cases done, mutants left."""

    case: int
    left: int


class BatchDone(Plain, frozen=True, tag="batch_done"):
    """A batch is done. ``false_alarms`` are those of this process so far.

    ``healthy_cases`` is the number of cases of the batch's seed that the healthy target was judged on.
    """

    false_alarms: tuple[FalseAlarm, ...]
    seed: int
    healthy_cases: int


_FORMAT = struct.Struct("<qq")
NO_MUTANT = -1


class PositionFile:
    """A file with two numbers: that of the case in the stream and that of the mutant in its batch, both from 0."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT)

    def write(self, case: int, mutant: int) -> None:
        """Replace the two numbers."""
        os.pwrite(self._descriptor, _FORMAT.pack(case, mutant), 0)

    def read(self) -> tuple[int, int]:
        """Return the two numbers; ``NO_MUTANT`` where nothing was written."""
        written = os.pread(self._descriptor, _FORMAT.size, 0)
        case, mutant = _FORMAT.unpack(written) if written else (NO_MUTANT, NO_MUTANT)
        return int(case), int(mutant)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
