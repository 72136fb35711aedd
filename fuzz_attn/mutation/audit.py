"""A whole audit: chooses the mutants, judges them under every seed in several processes, and saves the result."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self, TypeAlias

import msgspec
from rich.console import Console
from rich.live import Live

from fuzz_attn.counterexamples import environment_of
from fuzz_attn.engine.orders import Ready
from fuzz_attn.engine.preloaded import PROGRAM
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.inputs.random_bits import Stream
from fuzz_attn.mutation import audit_results
from fuzz_attn.mutation.audit_report import LiveTable
from fuzz_attn.mutation.audit_results import (
    RULES,
    Audit,
    AuditSetup,
    Batch,
    BatchDone,
    FalseAlarm,
    Finished,
    Mutant,
    Outcome,
    PositionFile,
    Progress,
    Reason,
    State,
    Survey,
    Surveyed,
    with_equivalents,
)
from fuzz_attn.mutation.audit_worker import POSITION_FILE
from fuzz_attn.mutation.seeded_bugs import load_seeded_bugs
from fuzz_attn.operations.registry import FamilyName, operation_of_family
from fuzz_attn.report.printing import PIPE_SECONDS, show, whole
from fuzz_attn.workers.fork_server import fork_server
from fuzz_attn.workers.messages import Died, Refused
from fuzz_attn.workers.worker_process import WorkerProcess

BATCHES_EACH: Final = 2
"""Batches for each worker: every batch prepares all cases anew, but other workers wait only for the last ones."""
SILENCE_SECONDS: Final = 600.0
"""A worker that sends nothing for this long hangs where no alarm reaches it."""
POLL_SECONDS: Final = 0.5

COMMAND: Final = (sys.executable, "-P", "-m", "fuzz_attn.mutation.audit_worker")

Reply: TypeAlias = Ready | Surveyed | Finished | Progress | BatchDone | Refused | Died
DECODER: Final = msgspec.json.Decoder[Reply](Reply)


class PooledWorker:
    """One worker process and the mutants of its batch that are not finished."""

    def __init__(self, setup: AuditSetup, index: int) -> None:
        Path(setup.scratch).mkdir()
        self.batch: Batch | None = None
        self.left: dict[str, Mutant] = {}
        self.interrupted: Batch | None = None
        """What is left of a batch that the process died in."""
        self.progress = Progress(0, 0)
        self.last_message = time.monotonic()
        self._position = PositionFile(Path(setup.scratch) / POSITION_FILE)
        self.process = WorkerProcess(COMMAND, DECODER, index)
        self.process.send(setup)

    @property
    def connection(self) -> Connection:
        """The connection to the process."""
        return self.process.connection

    def receive(self) -> Reply | None:
        """Return the next message, None at the process's end."""
        message = self.process.receive()
        self.last_message = time.monotonic()
        return message

    def start(self, batch: Batch) -> None:
        """Hand out a batch."""
        self.batch, self.left = batch, {mutant.name: mutant for mutant in batch.mutants}
        self.last_message = time.monotonic()
        self.process.send(batch)

    def outcome_of_death(self, code: int) -> Outcome:
        """Return the outcome of the mutant that a process died of; raises FuzzAttnError where it died of none."""
        case, index = self._position.read()
        mutants = self.batch.mutants if self.batch is not None else ()
        killer = mutants[index] if 0 <= index < len(mutants) else None
        if self.batch is None or killer is None or killer.name not in self.left:
            printed = self.process.last_output()
            raise FuzzAttnError(f"a worker of the audit died with status {code}, of no mutant:\n{printed}")
        del self.left[killer.name]
        self.interrupted = msgspec.structs.replace(self.batch, mutants=tuple(self.left.values()))
        message, rules = f"the process ended with status {code}", dict.fromkeys(self.batch.rules, case + 1)
        return Outcome(killer, "killed", self.batch.seed, "oracle", "crash", message, case + 1, rules=rules)

    def end(self) -> None:
        """Kill the process."""
        self.process.end()
        self._position.close()


class AuditPool:
    """Workers that share one target and folder of seeded bugs. Use as a context, which ends all of them."""

    ready: Ready

    def __init__(self, setup: AuditSetup, size: int) -> None:
        self.size = size
        self.workers: list[PooledWorker] = []
        self.false_alarms: set[FalseAlarm] = set()
        self.healthy_cases: dict[int, int] = {}
        self._setup = setup
        self._started = 0
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        """Start one worker and wait until it is set up; raises :class:`FuzzAttnError` where it cannot be."""
        self._resources.enter_context(fork_server(PROGRAM))
        self._scratch = Path(self._resources.enter_context(TemporaryDirectory(prefix="fuzz-attn-audit-")))
        try:
            ready = self._wait_for(self._start_worker())
        except BaseException:
            self._end()
            raise
        assert isinstance(ready, Ready)
        self.ready = ready
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End all workers."""
        self._end()

    def survey(self, seed: int, cases: int) -> tuple[Mutant, ...]:
        """Return every change of the IR of the kernels that a seed's first cases launch."""
        self.workers[0].process.send(Survey(seed, cases))
        surveyed = self._wait_for(self.workers[0])
        assert isinstance(surveyed, Surveyed)
        return surveyed.mutants

    def judge(self, batches: Sequence[Batch]) -> Iterator[Outcome | None]:
        """Yield each outcome of some batches, spread over the workers, when it comes; None while nothing does."""
        each = -(-BATCHES_EACH * self.size // max(1, len(batches))) if self.size > 1 else 1
        waiting = deque(part for batch in batches for part in _parts(batch, each))
        while self._hand_out(waiting):
            messages = self._messages()
            if not messages:
                yield None
            for worker, message in messages:
                outcome = self._handle(worker, message)
                if outcome is not None:
                    yield outcome
                if worker.interrupted is not None and worker.interrupted.mutants:
                    waiting.append(worker.interrupted)
                worker.interrupted = None

    def _hand_out(self, waiting: deque[Batch]) -> bool:
        """Give waiting batches to idle or new workers; return whether any worker is busy."""
        idle = [worker for worker in self.workers if worker.batch is None]
        while waiting and (idle or len(self.workers) < self.size):
            worker = idle.pop() if idle else self._start_worker()
            worker.start(waiting.popleft())
        return any(worker.batch is not None for worker in self.workers)

    def _messages(self) -> list[tuple[PooledWorker, Reply | None]]:
        """Return the messages of busy workers, at most one of each, as soon as there are any."""
        busy = {worker.connection: worker for worker in self.workers if worker.batch is not None}
        speaking = [
            busy[connection] for connection in wait([*busy], POLL_SECONDS) if isinstance(connection, Connection)
        ]
        if not speaking:
            self._kill_silent_workers()
        return [(worker, worker.receive()) for worker in speaking]

    def _handle(self, worker: PooledWorker, message: Reply | None) -> Outcome | None:
        """Take in one message; return the outcome that it leads to. The batch of a worker that died ends."""
        match message:
            case Finished(outcome):
                worker.left.pop(outcome.mutant.name, None)
                return outcome
            case Progress():
                worker.progress = message
            case BatchDone():
                self._add_false_alarms(message)
                worker.batch = None
            case Refused(reason):
                raise FuzzAttnError(reason)
            case Died(code):
                return self._end_batch(worker, code)
            case None:
                outcome = self._end_batch(worker, worker.process.exit_code())
                self.workers.remove(worker)
                worker.end()
                return outcome
        return None

    def _end_batch(self, worker: PooledWorker, code: int) -> Outcome:
        outcome = worker.outcome_of_death(code)
        worker.batch = None
        return outcome

    def _start_worker(self) -> PooledWorker:
        scratch = str(self._scratch / f"worker-{self._started}")
        worker = PooledWorker(msgspec.structs.replace(self._setup, scratch=scratch), self._started)
        self._started += 1
        self.workers.append(worker)
        return worker

    def _wait_for(self, worker: PooledWorker) -> Reply:
        """Return the next message of a worker; raises FuzzAttnError if it cannot go on."""
        message = worker.receive()
        if isinstance(message, Refused):
            raise FuzzAttnError(message.reason)
        if message is None or isinstance(message, Died):
            raise FuzzAttnError(f"a worker of the audit ended too early:\n{worker.process.last_output()}")
        return message

    def _add_false_alarms(self, done: BatchDone) -> None:
        self.healthy_cases[done.seed] = max(self.healthy_cases.get(done.seed, 0), done.healthy_cases)
        self.false_alarms.update(done.false_alarms)

    def _kill_silent_workers(self) -> None:
        for worker in self.workers:
            if worker.batch is not None and time.monotonic() - worker.last_message > SILENCE_SECONDS:
                worker.process.kill()  # the next receive reports its end

    def _end(self) -> None:
        for worker in self.workers:
            worker.end()
        self._resources.close()


def _parts(batch: Batch, parts: int) -> Iterator[Batch]:
    """Yield the parts of a batch, each with its share of every kernel: neighbours take equally long."""
    parts = min(len(batch.mutants), parts)
    for first in range(parts):
        yield msgspec.structs.replace(batch, mutants=batch.mutants[first::parts])


SURVEY_CASES: Final = 480
"""Two rounds of a campaign: mutants come from the kernels of their compile keys, however few cases are judged."""

CASES_FOR_EACH: Final = 12
"""A second examination takes at most this many cases of the stream for each case that must run the changed operation: a
feature is in one case of five, and half of the cases run another kernel."""

_SAMPLE: Final = 61


@dataclass(frozen=True)
class Request:
    """The options of the command line.

    ``seeded_bugs`` is a folder of seeded bugs; None changes the IR instead. ``only`` are parts of names: a mutant's
    name must contain one of them, if there are any. ``sample`` limits the mutants and ``max_cases`` the cases of each
    under each of the ``seeds``. A change that no seed found is examined in ``enough`` cases that run it; 0 is none.
    ``reasons`` say which changes are equivalent. The kernels of the first ``survey_cases`` are changed, or of the first
    ``max_cases`` where these are more.
    """

    target: str
    family: FamilyName | None
    seeded_bugs: Path | None
    only: tuple[str, ...]
    sample: int | None
    max_cases: int
    enough: int
    rules: bool
    seeds: tuple[int, ...]
    workers: int
    folder: Path
    reasons: tuple[Reason, ...] = ()
    survey_cases: int = SURVEY_CASES


def audit(request: Request, console: Console) -> Audit:
    """Run an audit, show it while it runs, save and return it.

    Raises :class:`FuzzAttnError` where the target cannot be set up or there is no mutant.
    """
    started = time.monotonic()
    setup = AuditSetup(request.target, request.family, str(request.seeded_bugs or ""))
    with AuditPool(setup, request.workers) as pool:
        mutants = _mutants(request, pool)
        table = LiveTable(len(mutants) * len(request.seeds))
        with _shown(table, console) as refresh:
            judging = _Judging(pool, table, refresh)
            ruled = request.rules and operation_of_family(pool.ready.family).has_tolerances
            rules = RULES if ruled else ()
            batches = [Batch(tuple(mutants), seed, request.max_cases, rules) for seed in request.seeds]
            found = judging.outcomes(batches)
            found |= judging.second_outcomes(found, mutants, request.seeds, request.enough)
        order = [(seed, mutant) for seed in request.seeds for mutant in mutants]
        done = Audit(
            target=pool.ready.target,
            family=pool.ready.family,
            seeds=request.seeds,
            cases=request.max_cases,
            seconds=time.monotonic() - started,
            workers=request.workers,
            versions=environment_of("simulator", ()).versions,
            outcomes=with_equivalents([found[key] for key in order], request.reasons),
            ruled=ruled,
            false_alarms=tuple(sorted(pool.false_alarms)),
            healthy_cases=sum(pool.healthy_cases.values()),
        )
    audit_results.save(done, request.folder / "audit.json")
    return done


def _mutants(request: Request, pool: AuditPool) -> Sequence[Mutant]:
    if request.seeded_bugs is None:
        cases = max(request.max_cases, request.survey_cases)
        named = {mutant.name: mutant for seed in request.seeds for mutant in pool.survey(seed, cases)}
        mutants: tuple[Mutant, ...] = tuple(named[name] for name in sorted(named))
    else:
        bugs = (bug for bug in load_seeded_bugs(request.seeded_bugs) if pool.ready.family in bug.families)
        mutants = tuple(Mutant(bug.name) for bug in bugs)
    if not mutants:
        raise FuzzAttnError(f"target={request.target!r} has no mutant: no seeded bug, or no Triton kernel")
    for part in request.only:
        if not any(part in mutant.name for mutant in mutants):
            raise FuzzAttnError(f"only={part!r} is in no mutant's name")
    if request.only:
        mutants = tuple(mutant for mutant in mutants if any(part in mutant.name for part in request.only))
    return sampled(mutants, request.sample, request.seeds[0])


def sampled(mutants: Sequence[Mutant], sample: int | None, seed: int) -> Sequence[Mutant]:
    """Return that many mutants, chosen by the seed, in their own order; all of them for None."""
    if sample is None or sample >= len(mutants):
        return mutants
    chosen = sorted(Stream(seed, _SAMPLE).permutation(len(mutants))[:sample].tolist())
    return [mutants[index] for index in chosen]


@dataclass
class _Judging:
    """Judges batches on a pool and keeps the table up to date."""

    pool: AuditPool
    table: LiveTable
    refresh: Callable[[], None]

    def outcomes(self, batches: Sequence[Batch]) -> dict[tuple[int, Mutant], Outcome]:
        """Return the outcome of every seed and mutant of some batches."""
        found = {}
        for outcome in self.pool.judge(batches):
            if outcome is not None:
                found[outcome.seed, outcome.mutant] = outcome
                self.table.add(outcome)
            self.table.progress = [(worker.progress.case, worker.progress.left) for worker in self.pool.workers]
            self.refresh()
        return found

    def second_outcomes(
        self, found: dict[tuple[int, Mutant], Outcome], mutants: Sequence[Mutant], seeds: Sequence[int], enough: int
    ) -> dict[tuple[int, Mutant], Outcome]:
        """Return the first seed's outcomes of changes of the IR that no seed found, with more evidence."""
        missed = tuple(
            mutant
            for mutant in mutants
            if mutant.ir_change and all(found[seed, mutant].state in ("survived", "unobserved") for seed in seeds)
        )
        if not enough or not missed:
            return {}
        self.table.examine_again(len(missed))
        second = self.outcomes([Batch(missed, seeds[0], CASES_FOR_EACH * enough, enough=enough)])
        return {key: combined(found[key], outcome) for key, outcome in second.items()}


def combined(first: Outcome, second: Outcome) -> Outcome:
    """Return the outcome of a mutant that was not found, with the evidence of its second examination."""
    evidence, message = second.evidence, second.message
    state: State = "survived" if evidence.changed or second.state == "killed" else first.state
    if second.state == "killed":
        message = f"found by {second.property_name} ({second.kind}) after {second.case} cases: {second.message}"
    return msgspec.structs.replace(first, state=state, message=message, evidence=evidence)


@contextmanager
def _shown(table: LiveTable, console: Console) -> Iterator[Callable[[], None]]:
    """Show the table while the context lasts; yield a function to call often, which prints lines on a plain pipe."""
    if console.is_terminal:
        with Live(console=console, transient=True, refresh_per_second=4, get_renderable=table.render):
            yield lambda: None
        return
    printed = time.monotonic()

    def print_line() -> None:
        nonlocal printed
        if time.monotonic() - printed > PIPE_SECONDS:
            printed = time.monotonic()
            show(console, whole(table.line()))

    yield print_line
