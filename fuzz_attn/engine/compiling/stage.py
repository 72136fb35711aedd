"""Stage: the parent's end of the process that compiles the kernels of a run's next rounds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import msgspec

from fuzz_attn.engine.compiling.rounds import Rounds, StagePlan
from fuzz_attn.engine.events import WHOLE_RUN, Note, StageEvent
from fuzz_attn.engine.orders import Ready
from fuzz_attn.workers.worker_process import WorkerProcess

COMMAND: Final = (sys.executable, "-P", "-m", "fuzz_attn.engine.compiling.compiler")
DECODER: Final = msgspec.json.Decoder[StageEvent](StageEvent)


class CompileStage:
    """A process that compiles for a built-in target at once, and for all others when a worker is ready."""

    def __init__(self, plan: StagePlan) -> None:
        self._rounds = Rounds(Path(plan.folder))
        self._rounds.make()
        self._begun = False
        self._process: WorkerProcess[StageEvent] | None = WorkerProcess(COMMAND, DECODER)
        self._process.send(plan)

    def __enter__(self) -> Self:
        """Return the stage; it ends with the context."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process, whatever it compiles."""
        self._end()

    def begin(self, ready: Ready) -> None:
        """Tell the process, once, what a worker is ready for."""
        if self._begun or self._process is None:
            return
        self._begun = True
        if ready.gpu is None:
            self._end()
        else:
            self._process.send(ready)

    def events(self) -> Iterator[StageEvent | Note]:
        """Yield what the process has sent; if it has died, say so, and shards compile their own kernels from then."""
        while self._process is not None:
            try:
                event = self._process.receive(time.monotonic())
            except TimeoutError:
                return
            if event is not None:
                yield event
                continue
            death = self._process.death(self._process.exit_code())
            self._end()
            yield Note(WHOLE_RUN, f"no kernels were compiled ahead from then on: the compiler {death}")

    def _end(self) -> None:
        self._rounds.set_ended()
        if self._process is not None:
            self._process.end()
            self._process = None
