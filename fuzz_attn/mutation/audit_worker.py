"""The worker of an audit: judges batches of mutants. ``python -m fuzz_attn.mutation.audit_worker`` serves one."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fuzz_attn.engine import case_judge
from fuzz_attn.engine.case_judge import CaseJudge
from fuzz_attn.engine.orders import Ready, Setup
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.mutation.audit_results import (
    PROPERTIES,
    AuditSetup,
    Batch,
    BatchDone,
    Finished,
    Mutant,
    Progress,
    Survey,
    Surveyed,
)
from fuzz_attn.workers.messages import Refused
from fuzz_attn.workers.worker import Send, serve

if TYPE_CHECKING:
    from fuzz_attn.mutation.batch_runner import BatchRunner, MutantRun
    from fuzz_attn.targets.target import Target

POSITION_FILE: Final = "position"
PROGRESS_SECONDS: Final = 0.5


@dataclass(frozen=True)
class AuditWorker:
    """The healthy target and what judges mutants of it."""

    setup: AuditSetup
    healthy: CaseJudge
    runner: BatchRunner
    forks_first: bool = False
    memory: int = 0

    def start(self) -> None:
        """Do nothing: the simulator has no device to start."""

    def ready(self) -> Ready:
        """Check the simulator; raises :class:`FuzzAttnError` where it does not work."""
        return self.healthy.ready()

    def answer(self, message: bytes, send: Send) -> None:
        """Carry out a survey or a batch and send what comes of it."""
        order = msgspec.json.decode(message, type=Survey | Batch)
        try:
            if isinstance(order, Survey):
                send(Surveyed(tuple(self.runner.survey(order.seed, order.cases))))
            else:
                self._run(order, send)
        except FuzzAttnError as error:  # of a seeded bug or a kernel: the user can mend it
            send(Refused(str(error)))
        except Exception:  # noqa: BLE001 - a mutant's own are outcomes: this one is a defect of the harness
            send(Refused(f"fuzz_attn itself failed on a case:\n{traceback.format_exc()}"))

    def _run(self, batch: Batch, send: Send) -> None:
        from fuzz_attn.mutation.batch_runner import MutantRun  # noqa: PLC0415 - imports torch

        runs = [
            MutantRun(mutant, self._target_of(mutant), {PROPERTIES, *batch.rules}, batch.seed)
            for mutant in batch.mutants
        ]
        left, reported = runs, 0.0

        def after_case(number: int, undecided: list[MutantRun]) -> None:
            nonlocal left, reported
            _send_finished(left, undecided, send)
            left = undecided
            if time.monotonic() - reported > PROGRESS_SECONDS:
                reported = time.monotonic()
                send(Progress(number, len(left)))

        self.runner.run(runs, batch.seed, batch.cases, enough=batch.enough, after_case=after_case)
        _send_finished(left, (), send)
        send(BatchDone(tuple(self.runner.false_alarms), batch.seed, self.runner.healthy_cases[batch.seed]))

    def _target_of(self, mutant: Mutant) -> Target:
        from fuzz_attn.mutation.edited_kernels import target_with  # noqa: PLC0415 - as above
        from fuzz_attn.mutation.seeded_bugs import seeded_bug  # noqa: PLC0415 - as above

        if mutant.ir_change is not None:
            return self.healthy.target
        bug = seeded_bug(Path(self.setup.seeded_bugs), mutant.name)
        return target_with(bug, self.healthy.target.family, Path(self.setup.scratch))


def _send_finished(before: Sequence[MutantRun], left: Sequence[MutantRun], send: Send) -> None:
    """Send the outcomes of the mutants that are no longer left."""
    kept = {run.mutant for run in left}
    for run in before:
        if run.mutant not in kept:
            send(Finished(run.outcome()))


def _load(message: bytes) -> AuditWorker:
    """Return the worker of a set-up; raises :class:`FuzzAttnError` for what the user can mend."""
    setup = msgspec.json.decode(message, type=AuditSetup)
    healthy = case_judge.load(Setup(setup.target, setup.family, "simulator"))
    from fuzz_attn.backends.simulator import SimulatorBackend  # noqa: PLC0415 - heavy imports happen only in the child
    from fuzz_attn.mutation.audit_results import PositionFile  # noqa: PLC0415 - as above
    from fuzz_attn.mutation.batch_runner import BatchRunner  # noqa: PLC0415 - as above

    assert isinstance(healthy.backend, SimulatorBackend)
    position = PositionFile(Path(setup.scratch) / POSITION_FILE)
    return AuditWorker(setup, healthy, BatchRunner(healthy.target, healthy.backend, position))


if __name__ == "__main__":
    serve(_load)
