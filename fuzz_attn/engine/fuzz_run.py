"""FuzzRun: fuzzes one target in several shards and passes their events to listeners, watched by a watchdog.

Each shard is a process of its own, also with one worker, because drawing cases costs as much as judging them. The
shards share nothing but news: what one has found, the others read in a file. They run on this machine or on a cluster.

A shard is sent its plan and nothing else, so that this process never waits for one that does not read.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Final, Protocol, Self

import msgspec

from fuzz_attn.backends.gpus import multi_process_service
from fuzz_attn.engine.events import (
    WHOLE_RUN,
    CaseJudged,
    Emit,
    Event,
    FailureChanged,
    FailureFound,
    Finished,
    Note,
    WorkerReady,
    all_of,
)
from fuzz_attn.engine.listeners.event_log import LOG_NAME, EventLog
from fuzz_attn.engine.listeners.results import Results, RunReport, one_for_each_bug, united_with_other_runs
from fuzz_attn.engine.listeners.statistics import Novelty
from fuzz_attn.engine.preloaded import PROGRAM
from fuzz_attn.engine.rounds import CompileStage, StagePlan
from fuzz_attn.engine.run_folder import check_writable, compiled_kernels_in, compiles, make_folder, output_folder, prune
from fuzz_attn.engine.run_plan import RunPlan, ShardPlan, rest_of, shard_plans, stage_plan, started
from fuzz_attn.engine.shards import INTERRUPTED, RUN_ENDED, LocalShards, Shards, is_news
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.workers.fork_server import fork_server

STILL_SECONDS: Final = 20.0
"""A run whose loop has not come round for so long says what it waits for."""
LATE_SECONDS: Final = 10.0
"""A run that goes on so long after its limit says what it waits for."""
LOOK_SECONDS: Final = 1.0
ALIVE_SECONDS: Final = 60.0
_STANDARD_ERROR: Final = 2


class Watched(Protocol):
    """What the watchdog knows of a run. It reads all of this in a thread of its own."""

    def waits_for(self) -> str:
        """Return what the run waits for, in words."""

    def limit(self) -> float:
        """Return when the run is to end, a time of ``time.monotonic``; infinity where it has no limit."""

    def last_moment(self) -> float:
        """Return when the run must have ended."""

    def strike(self) -> None:
        """Kill the processes of the run and wait for nothing."""

    def show_alive(self) -> None:
        """Let others see that the run goes on."""


class Watchdog:
    """Watches a run for the time of a ``with`` block. The run calls :meth:`beat` whenever its loop comes round."""

    def __init__(self, run: Watched, say: Callable[[str], None] | None = None) -> None:
        self._run = run
        self._say = say or say_on_standard_error
        self._beat = time.monotonic()
        self._shown = 0.0
        self._said_still = self._said_late = self._struck = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog of a run", daemon=True)

    def __enter__(self) -> Self:
        with contextlib.suppress(RuntimeError):  # no other thread is allowed: then nobody watches
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()

    def beat(self) -> None:
        """Note that the run goes on."""
        self._beat = time.monotonic()
        self._said_still = False

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Say what has to be said at a time, and end the run if that is over."""
        if now > self._shown + ALIVE_SECONDS:
            self._shown = now
            self._run.show_alive()
        still, late = now - self._beat, now - self._run.limit()
        if still > STILL_SECONDS and not self._said_still:
            self._said_still = True
            self._say(f"no progress for {still:.0f} s: waiting for {self._run.waits_for()}")
        if late > LATE_SECONDS and not self._said_late:
            self._said_late = True
            self._say(f"the run goes on {late:.0f} s after its limit: waiting for {self._run.waits_for()}")
        if now > self._run.last_moment() and not self._struck:
            self._struck = True
            waited = self._run.waits_for()
            self._run.strike()
            self._say(f"all workers were killed: the run did not end by itself, and waited for {waited}")


def say_on_standard_error(text: str) -> None:
    """Print one line on standard error, unless that would wait for its reader."""
    with contextlib.suppress(OSError, ValueError):
        writable = select.poll()
        writable.register(_STANDARD_ERROR, select.POLLOUT)
        if writable.poll(0):
            os.write(_STANDARD_ERROR, f"fuzz-attn: {' '.join(text.split())}\n".encode(errors="replace")[:4096])


TICK_SECONDS: Final = 0.25
STOP_SECONDS: Final = 10.0
"""A shard that has not ended so long after it was asked to is killed."""
OVERDUE_SECONDS: Final = 15.0
"""A shard that still runs so long after its time limit is asked to end. It may confirm a last failure for 5 s."""
STUCK_SECONDS: Final = 10.0
"""A shard that was to be killed so long ago is killed by the watchdog: the run itself waits for something else."""
SERVER_ENDED: Final = "the process that all workers are forks of was killed"
READER: Final = "what reads its output"
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class RunningShard:
    """A shard, when it must have ended, since when and how many cases it judged, and whether it sent its last event."""

    plan: ShardPlan
    deadline: float
    ready: float | None = None
    cases: int = 0
    finished: bool = False
    stopping: bool = False
    limit: float = math.inf
    """When its time is over."""
    heard: float = field(default_factory=time.monotonic)
    """When its last event came."""

    @property
    def number(self) -> int:
        """The number of its plan."""
        return self.plan.shard

    def words(self) -> str:
        """Return what there is to know of a shard that is waited for."""
        silent = f"for {time.monotonic() - self.heard:.0f} s"
        if self.ready is None:
            return f"worker {self.number}, which has been starting {silent}"
        return f"worker {self.number}, which has judged {self.cases} cases and has said nothing {silent}"


class FuzzRun:
    """One run. ``tick`` is called several times a second, also while nothing happens.

    ``shards`` says where its shards are, by default on this machine.
    """

    def __init__(
        self, plan: RunPlan, *listeners: Emit, tick: Callable[[], None] = lambda: None, shards: Shards | None = None
    ) -> None:
        self.plan = plan
        self.results = Results()
        self._novelty = Novelty()
        self._listeners = all_of(self.results, self._novelty, *listeners)
        self._tick = tick
        self._shards = LocalShards() if shards is None else shards
        self._running: dict[int, RunningShard] = {}
        self._stage: CompileStage | None = None
        self._stage_plan: StagePlan | None = None
        self._server_ended: Callable[[], bool] = lambda: False
        self._signal = 0
        self._signals = 0
        self._struck = False
        """Whether all shards are to be killed at once."""
        self._doing = ""
        """What the run waits for, if not for its shards; the watchdog says so where that takes long."""
        self._started = 0.0
        self._time_up = math.inf
        """When no shard starts any more, as the time of the first one is over."""

    def run(self) -> Results:
        """Fuzz until all shards have ended, and return the results.

        A signal that asks the process to end stops the shards; ``stopped_by`` of the results is its number. A second
        one kills them at once, and a third one ends this process. Raises :class:`FuzzAttnError` where the target or the
        backend cannot be set up and :class:`OutputError` where the output cannot be written.
        """
        make_folder(self.plan.run_folder)
        check_writable(self.plan.counterexamples)
        self._started = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(self._signals_noted())
            self._watchdog = stack.enter_context(Watchdog(self))
            self._set_up(stack)
            for shard_plan in shard_plans(self.plan):
                self._start(shard_plan)
            while self._running:
                self._step()
            self._emit(Finished(WHOLE_RUN, time.monotonic() - self._started, stopped_by=self._signal))
            self._doing = "the end of its processes"
        return self.results

    def _set_up(self, stack: ExitStack) -> None:
        """Start what all shards share, which ends with the stack, and emit that the run has started."""
        plan = self.plan
        self._doing = "the start of CUDA's Multi-Process Service (MPS)"
        service = stack.enter_context(multi_process_service(plan.setup.backend if plan.mps else ""))
        # The service ends after all workers.
        if isinstance(self._shards, LocalShards):
            self._server_ended = stack.enter_context(fork_server(PROGRAM))
        stack.callback(self._end)
        stack.enter_context(compiled_kernels_in(output_folder(plan.run_folder), plan.setup.backend))
        if plan.compiles_ahead and compiles(plan.setup.backend) and isinstance(self._shards, LocalShards):
            self._stage_plan = stage_plan(plan)
            self._stage = stack.enter_context(CompileStage(self._stage_plan))
        self._emit(started(plan.setup.target, plan.seed, plan.workers, plan.max_time, plan.max_cases, plan.part))
        self._doing = "the start of CUDA's Multi-Process Service (MPS)"
        if sharing := service():
            self._emit(Note(WHOLE_RUN, sharing))
        self._doing = ""

    def waits_for(self) -> str:
        """Return what the run waits for: of several shards the one that said nothing for the longest time."""
        shards = sorted(self._running.values(), key=lambda shard: shard.heard)
        return self._doing or (shards[0].words() if shards else "the end of its processes")

    def limit(self) -> float:
        """Return when the time of all shards is over, a time of ``time.monotonic``."""
        return max((shard.limit for shard in list(self._running.values())), default=math.inf)

    def last_moment(self) -> float:
        """Return when all shards must have ended."""
        deadlines = [shard.deadline for shard in list(self._running.values())]
        return max(deadlines, default=math.inf) + STOP_SECONDS + STUCK_SECONDS

    def strike(self) -> None:
        """Kill all shards, whatever this process waits for."""
        self._struck = True
        self._shards.strike()

    def show_alive(self) -> None:
        """Let those who delete old runs see that this one goes on."""
        with contextlib.suppress(OSError):
            os.utime(self.plan.run_folder)

    def _emit(self, event: Event) -> None:
        doing, self._doing = self._doing, READER
        try:
            self._listeners(event)
        finally:
            self._doing = doing

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
        """Note a signal. At the second one nothing is waited for: the loop may be blocked, so the shards end here."""
        self._signal = self._signal or number
        self._signals += 1
        if self._signals > 1:
            for each in SIGNALS:
                signal.signal(each, signal.SIG_DFL)
            self.strike()

    def _start(self, plan: ShardPlan) -> None:
        begun = time.time() - (0.0 if plan.lost else time.monotonic() - self._started)
        plan = msgspec.structs.replace(plan, stage=self._stage_plan, begun=begun)
        self._doing = f"the start of worker {plan.worker}"
        self._shards.start(plan)
        self._running[plan.shard] = RunningShard(plan, time.monotonic() + self._shards.start_seconds)
        self._doing = ""

    def _step(self) -> None:
        """Receive what has arrived, and stop what must end."""
        self._watchdog.beat()
        for number, event in self._shards.events(TICK_SECONDS):
            self._receive(self._running[number], event)
        for told in () if self._stage is None else self._stage.events():
            self._emit(told)
        if self._signal:
            self._stop(list(self._running.values()))
        if self._struck:
            for number in list(self._running):
                self._shards.kill(number)  # what it has sent still comes
        if self.plan.until_flat is not None and self._novelty.seconds_without() > self.plan.until_flat:
            self._stop_flat()
        self._stop_overdue()
        self._doing = READER
        self._tick()
        self._doing = ""

    def _stop_flat(self) -> None:
        """End the run as at a limit: nothing was new for so long that more of it would be the same."""
        if not all(shard.stopping for shard in self._running.values()):
            self._emit(Note(WHOLE_RUN, f"the run ended because nothing was new for {self.plan.until_flat:g} s"))
            self._stop(list(self._running.values()))

    def _stop_overdue(self) -> None:
        now = time.monotonic()
        for shard in [shard for shard in self._running.values() if now > shard.deadline]:
            if shard.stopping:
                self._shards.kill(shard.number)
            else:
                self._emit(Note(shard.number, f"worker {shard.number} was ended: it did not stop in time"))
                self._stop([shard])
        if now > self._time_up:
            self._drop_unplaced()

    def _drop_unplaced(self) -> None:
        """End the shards that still wait for a place when the time of the first ones is over."""
        waiting = [self._running[number] for number in self._shards.unplaced()]
        waiting = [shard for shard in waiting if not shard.stopping]
        if waiting:
            self._emit(
                Note(WHOLE_RUN, f"{len(waiting)} of {self.plan.workers} workers found no free place in the time")
            )
            self._stop(waiting)

    def _stop(self, shards: Sequence[RunningShard]) -> None:
        """Ask shards to save what they found and to end."""
        for shard in shards:
            if not shard.stopping:
                shard.stopping = True
                shard.deadline = time.monotonic() + STOP_SECONDS
                self._shards.stop(shard.number)

    def _receive(self, shard: RunningShard, event: Event | None) -> None:
        shard.heard = time.monotonic()
        match event:
            case None:
                self._remove(shard)
                return
            case WorkerReady() if not shard.stopping:
                self._note_ready(shard)
                if self._stage is not None:
                    self._stage.begin(event.ready)
            case CaseJudged():
                shard.cases += event.phase == "search"
            case FailureFound() | FailureChanged() if is_news(event):
                self._shards.tell(event)
            case Finished():
                shard.finished = True
                event = self._explained(event, shard)
        self._pass_on(shard, event)

    def _explained(self, event: Finished, shard: RunningShard) -> Finished:
        """Return the last event of a shard with the cause of its end; if it was asked to, its interrupt is no error."""
        asked = shard.stopping and event.error in (INTERRUPTED, RUN_ENDED)
        return msgspec.structs.replace(event, error="" if asked else self._with_cause(event.error))

    def _with_cause(self, error: str) -> str:
        """Return an error of a shard after that of the fork server, whose end ends all shards."""
        return f"{SERVER_ENDED}: {error}" if error and self._server_ended() else error

    def _note_ready(self, shard: RunningShard) -> None:
        """Note that a shard begins to fuzz, or goes on with another worker."""
        now, limit = time.monotonic(), self.plan.max_time
        shard.ready = now if shard.ready is None else shard.ready
        shard.limit = math.inf if limit is None else now + limit
        shard.deadline = shard.limit + OVERDUE_SECONDS
        if limit is not None:
            self._time_up = min(self._time_up, now + limit)

    def _pass_on(self, shard: RunningShard, event: Event) -> None:
        """Emit an event of a shard; raises the error of one whose worker could not be set up, unless it was stopped."""
        self._emit(event)
        if isinstance(event, Finished) and event.error and shard.ready is None and not shard.stopping:
            raise FuzzAttnError(event.error)

    def _remove(self, shard: RunningShard) -> None:
        """Forget a shard that has ended, and report it if it did not end by itself."""
        del self._running[shard.number]
        lost = self._shards.was_lost(shard.number)
        death = self._shards.forget(shard.number)
        if shard.finished:
            return
        rest = self._rest(shard) if lost and not shard.stopping else None
        error = "" if shard.stopping or rest else self._with_cause(f"the process of worker {shard.number} {death}")
        seconds = time.monotonic() - self._started
        if rest is not None:
            self._emit(Note(WHOLE_RUN, f"worker {shard.number} {death}; its work went on elsewhere"))
            self._emit(Finished(shard.number, seconds))
            self._start(rest)
        else:
            self._pass_on(shard, Finished(shard.number, seconds, error))

    def _rest(self, shard: RunningShard) -> ShardPlan | None:
        """Return what is left of the work of a shard that was lost; None if that is nothing, or was lost too often."""
        seconds = 0.0 if shard.ready is None else time.monotonic() - shard.ready
        return rest_of(shard.plan, shard.cases, seconds)

    def _end(self) -> None:
        """Kill all shards; their workers end with them."""
        self._shards.end()
        self._running.clear()


def run_and_log(
    plan: RunPlan, *listeners: Emit, tick: Callable[[], None] = lambda: None, shards: Shards | None = None
) -> RunReport:
    """Fuzz with a log in the run's folder and return the report; delete old run folders."""
    began = time.time()
    with EventLog(plan.run_folder / LOG_NAME) as log:
        report = one_for_each_bug(FuzzRun(plan, log, *listeners, tick=tick, shards=shards).run().report())
    report = united_with_other_runs(report, began)
    prune(plan.run_folder.parent)
    return msgspec.structs.replace(report, errors=(*report.errors, log.error)) if log.error else report
