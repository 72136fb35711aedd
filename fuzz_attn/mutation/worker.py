"""The audit's worker: examines batches of subjects in a process of its own. One JSON message a line, both ways."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec

from fuzz_attn.engine.messages import Refused
from fuzz_attn.engine.worker import die_with_parent, take_standard_streams
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.mutation.messages import Alarms, Batch, Finished, Progress, Start, Started, Survey, Surveyed
from fuzz_attn.mutation.subjects import Subject

if TYPE_CHECKING:
    from fuzz_attn.mutation.examiner import Candidate
    from fuzz_attn.targets.target import Target

PROGRESS_SECONDS: Final = 0.5


def main() -> None:
    """Serve until standard input ends."""
    die_with_parent()
    orders, answers = take_standard_streams()
    try:
        _serve(orders, answers)
    except FuzzAttnError as error:
        _say(answers, Refused(str(error)))
    except BrokenPipeError:
        os._exit(0)  # the parent is gone; there is nobody to tell
    except Exception:  # noqa: BLE001 - whatever it is, the parent must hear of it and not wait
        _say(answers, Refused(f"fuzz_attn itself failed in an audit:\n{traceback.format_exc()}"))


def _serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    start = msgspec.json.decode(orders.readline(), type=Start)
    desk = Desk(start, answers)
    for line in orders:
        desk.do(msgspec.json.decode(line, type=Survey | Batch))


class Desk:
    """A worker that is set up: imports torch, the simulator and the target, in this order."""

    def __init__(self, start: Start, answers: IO[bytes]) -> None:
        from fuzz_attn.backends.simulator import SimulatorBackend  # noqa: PLC0415 - everything heavy only in the child

        self.backend = SimulatorBackend()
        self.backend.prepare()
        import torch  # noqa: PLC0415 - as above

        torch.set_num_threads(1)
        from fuzz_attn.mutation.case_stream import Stream  # noqa: PLC0415 - as above
        from fuzz_attn.mutation.examiner import Examiner, Place  # noqa: PLC0415 - as above
        from fuzz_attn.targets.target import load_target  # noqa: PLC0415 - as above

        self.start = start
        self.answers = answers
        self.target = load_target(start.target, start.family)
        place = Place(os.open(start.place, os.O_RDWR | os.O_CREAT))
        self.examiner = Examiner(self.target, self.backend, Stream(self.target.domain, start.seed), place)
        self._told = 0.0
        self.backend.preflight()
        _say(answers, Started(self.target.name, self.target.family))

    def do(self, order: Survey | Batch) -> None:
        """Carry out one order and say what came of it."""
        if isinstance(order, Survey):
            _say(self.answers, Surveyed(tuple(self.examiner.survey(order.cases))))
            return
        self._examine(order)

    def _examine(self, batch: Batch) -> None:
        from fuzz_attn.mutation.examiner import Candidate  # noqa: PLC0415 - as above

        candidates = [Candidate(subject, self._target_of(subject), {"", *batch.rules}) for subject in batch.subjects]
        left = candidates

        def told(number: int, alive: list[Candidate]) -> None:
            nonlocal left
            self._finish(left, alive)
            left = alive
            if time.monotonic() - self._told > PROGRESS_SECONDS:
                self._told = time.monotonic()
                _say(self.answers, Progress(number, len(alive)))

        self.examiner.examine(candidates, batch.cases, enough=batch.enough, told=told)
        self._finish(left, ())
        alarms = {rule: tuple(sorted(places)) for rule, places in self.examiner.false_alarms.items()}
        _say(self.answers, Alarms(alarms, self.examiner.drawn))

    def _finish(self, candidates: Sequence[Candidate], alive: Sequence[Candidate]) -> None:
        """Say what came of the candidates that are not alive any more."""
        kept = {candidate.subject for candidate in alive}
        for candidate in candidates:
            if candidate.subject not in kept:
                _say(self.answers, Finished(candidate.outcome()))

    def _target_of(self, subject: Subject) -> Target:
        from fuzz_attn.mutation.seeded.edited_kernels import specimen_target  # noqa: PLC0415 - as above

        if subject.mutant is not None:
            return self.target
        return specimen_target(Path(self.start.museum), subject.name, self.target.family)


def _say(answers: IO[bytes], message: msgspec.Struct) -> None:
    answers.write(msgspec.json.encode(message) + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
