"""FuzzRun: fuzzes one target in several shard processes and passes their events to listeners.

Each shard is a process of its own, also with one worker, because drawing cases costs as much as judging them. The
shards share nothing but news: each failure of one is sent to the others.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Final

import msgspec

from fuzz_attn.engine.events import (
    WHOLE_RUN,
    Emit,
    Event,
    FailureChanged,
    FailureFound,
    Finished,
    Note,
    WorkerReady,
    all_of,
)
from fuzz_attn.engine.isolated_worker import START_SECONDS
from fuzz_attn.engine.listeners.event_log import LOG_NAME, EventLog
from fuzz_attn.engine.listeners.novelty import Novelty
from fuzz_attn.engine.listeners.results import Results, RunReport, one_for_each_bug
from fuzz_attn.engine.run.machine import started
from fuzz_attn.engine.run.run_plan import RunPlan, ShardPlan, shard_plans
from fuzz_attn.engine.run_folder import check_writable, make_folder, prune
from fuzz_attn.engine.worker_process import WorkerProcess
from fuzz_attn.errors import FuzzAttnError

COMMAND: Final = (sys.executable, "-P", "-m", "fuzz_attn.engine.run.shard")
TICK_SECONDS: Final = 0.25
STOP_SECONDS: Final = 10.0
"""A shard that has not ended so long after it was asked to is killed."""
OVERDUE_SECONDS: Final = 60.0
"""A shard that still runs so long after its time limit is asked to end."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class ShardProcess:
    """A shard's process, when it must have ended, and whether it sent its last event."""

    plan: ShardPlan
    process: WorkerProcess[Event]
    deadline: float
    ready: bool = False
    finished: bool = False
    stopping: bool = False


class FuzzRun:
    """One run. ``tick`` is called several times a second, also while nothing happens."""

    def __init__(self, plan: RunPlan, *listeners: Emit, tick: Callable[[], None] = lambda: None) -> None:
        self.plan = plan
        self.results = Results()
        self._novelty = Novelty()
        self._emit = all_of(self.results, self._novelty, *listeners)
        self._tick = tick
        self._shards: dict[Connection, ShardProcess] = {}
        self._signal = 0
        self._signals = 0
        self._started = 0.0

    def run(self) -> Results:
        """Fuzz until all shards have ended, and return the results.

        A signal that asks the process to end stops the shards; ``stopped_by`` of the results is its number. Raises
        :class:`FuzzAttnError` where the target or the backend cannot be set up and :class:`OutputError` where the
        output cannot be written.
        """
        make_folder(self.plan.run_folder)
        check_writable(self.plan.counterexamples)
        self._started = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(self._signals_noted())
            stack.callback(self._end)
            plan = self.plan
            limits = plan.max_time, plan.max_cases
            self._emit(started(plan.setup.target, plan.seed, plan.workers, *limits, plan.part))
            self._start_shards()
            while self._shards:
                self._step()
            self._emit(Finished(WHOLE_RUN, time.monotonic() - self._started, stopped_by=self._signal))
        return self.results

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Note signals instead of raising: an exception could garble a message that is being received."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or number
        self._signals += 1

    def _start_shards(self) -> None:
        decoder = msgspec.json.Decoder[Event](Event)
        for plan in shard_plans(self.plan):
            process = WorkerProcess(COMMAND, decoder, plan.shard)
            self._shards[process.connection] = ShardProcess(plan, process, time.monotonic() + 2 * START_SECONDS)
            process.send(plan)

    def _step(self) -> None:
        """Receive what has arrived, and stop what must end."""
        for connection in wait(list(self._shards), TICK_SECONDS):
            assert isinstance(connection, Connection)
            self._receive(self._shards[connection])
        if self._signal:
            self._stop(list(self._shards.values()))
        if self._signals > 1:
            self._end()
        if self.plan.until_flat is not None and self._novelty.seconds_without() > self.plan.until_flat:
            self._stop_flat()
        self._stop_overdue()
        self._tick()

    def _stop_flat(self) -> None:
        """End the run as at a limit: nothing was new for so long that more of it would be the same."""
        if not all(shard.stopping for shard in self._shards.values()):
            self._emit(Note(WHOLE_RUN, f"the run ended because nothing was new for {self.plan.until_flat:g} s"))
            self._stop(list(self._shards.values()))

    def _stop_overdue(self) -> None:
        now = time.monotonic()
        for shard in [shard for shard in self._shards.values() if now > shard.deadline]:
            if shard.stopping:
                shard.process.kill()
            else:
                self._emit(Note(shard.plan.shard, f"worker {shard.plan.shard} was ended: it did not stop in time"))
                self._stop([shard])

    def _stop(self, shards: Sequence[ShardProcess]) -> None:
        """Ask shards to save what they found and to end."""
        for shard in shards:
            if not shard.stopping:
                shard.stopping = True
                shard.deadline = time.monotonic() + STOP_SECONDS
                with contextlib.suppress(ProcessLookupError):
                    os.kill(shard.process.pid, signal.SIGTERM)

    def _receive(self, shard: ShardProcess) -> None:
        event = shard.process.receive()
        match event:
            case None:
                self._remove(shard)
                return
            case WorkerReady():
                shard.ready = True
                limit = self.plan.max_time
                shard.deadline = math.inf if limit is None else time.monotonic() + limit + OVERDUE_SECONDS
            case FailureFound() | FailureChanged():
                self._tell_others(shard, event)
            case Finished():
                shard.finished = True
                event = _without_error(event) if shard.stopping else event
        self._pass_on(shard, event)

    def _pass_on(self, shard: ShardProcess, event: Event) -> None:
        """Emit an event of a shard; raises the error of a shard whose worker could not be set up."""
        self._emit(event)
        if isinstance(event, Finished) and event.error and not shard.ready:
            raise FuzzAttnError(event.error)

    def _tell_others(self, shard: ShardProcess, event: FailureFound | FailureChanged) -> None:
        for other in self._shards.values():
            if other is not shard:
                other.process.send(event)

    def _remove(self, shard: ShardProcess) -> None:
        """Forget a shard whose process has ended, and report it if it did not end by itself."""
        del self._shards[shard.process.connection]
        code = shard.process.exit_code()
        death = shard.process.death(code)
        shard.process.end()
        if not shard.finished:
            error = "" if shard.stopping else f"the process of worker {shard.plan.shard} {death}"
            self._pass_on(shard, Finished(shard.plan.shard, time.monotonic() - self._started, error))

    def _end(self) -> None:
        """Kill all shards; their workers end with them."""
        for shard in self._shards.values():
            shard.process.end()
        self._shards.clear()


def run_and_log(plan: RunPlan, *listeners: Emit, tick: Callable[[], None] = lambda: None) -> RunReport:
    """Fuzz with a log in the run's folder and return the report; delete old run folders."""
    with EventLog(plan.run_folder / LOG_NAME) as log:
        report = one_for_each_bug(FuzzRun(plan, log, *listeners, tick=tick).run().report())
    prune(plan.run_folder.parent)
    return msgspec.structs.replace(report, errors=(*report.errors, log.error)) if log.error else report


def _without_error(event: Finished) -> Finished:
    """Return the last event of a shard that was asked to end: the interrupt is no error."""
    return msgspec.structs.replace(event, error="")
