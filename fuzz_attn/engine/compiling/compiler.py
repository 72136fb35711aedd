"""The process of the compile stage: ``python -P -m fuzz_attn.engine.compiling.compiler`` compiles one run's kernels.

It receives a :class:`StagePlan` and later what the first worker is :class:`~fuzz_attn.engine.messages.Ready` for, and
sends a :class:`~fuzz_attn.engine.events.RoundCompiled` for each round. Starting the device takes a worker more than a
second, so it begins before that, where it can be told what the workers will say.

Each round is the work of one fork, which finds its kernels and compiles them. How many forks there are follows from how
many rounds are ready that no shard has begun.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from fuzz_attn.case.plain import Plain
from fuzz_attn.engine.child.fork import die_with_parent
from fuzz_attn.engine.compiling.pool import Forks
from fuzz_attn.engine.compiling.rounds import CASES, ReadyRound, Rounds, StagePlan
from fuzz_attn.engine.compiling.workers import Workers, answers_of, ask_workers, load_for, workers_of
from fuzz_attn.engine.events import WHOLE_RUN, CaseRefused, RoundCompiled
from fuzz_attn.engine.messages import Order, Ready, Setup
from fuzz_attn.engine.schedule import SharedRound, shared_round
from fuzz_attn.properties.refusal import Refusal
from fuzz_attn.strategies.kernel_variants import USUAL

if TYPE_CHECKING:
    from fuzz_attn.engine.compiling.rehearsal import Compiled, Rehearsal

AHEAD: Final = 2
"""So many rounds for each core are compiled that no shard has begun; then the stage rests."""
NICE: Final = 5
"""While shards have rounds to begin, judging goes first, and before that the start of the workers."""
FIRST_KERNELS, LATER_KERNELS = 3, 12
"""How many kernels of a round are compiled in the first visit of its key and in later ones, in which all keys have been
visited once."""
WAIT_SECONDS: Final = 0.1

StageEvent: TypeAlias = RoundCompiled | CaseRefused


class Outcome(Plain, frozen=True):
    """What a fork has found out about a round: what it compiled, and a case that is refused where all of them are."""

    compiled: RoundCompiled
    ready: ReadyRound
    order: Order | None = None
    refusal: Refusal | None = None


def forks_wanted(waiting: int, cores: int) -> int:
    """Return how many forks to compile with while so many rounds wait for a shard: all cores but one, down to none."""
    most, enough = max(1, cores - 1), AHEAD * cores
    return max(0, -(-most * (enough - waiting) // enough))


class Compiler:
    """Compiles the kernels of the next rounds."""

    def __init__(self, plan: StagePlan, workers: Workers) -> None:
        self._plan, self._domain = plan, workers.domain
        self._rounds = Rounds(Path(plan.folder))
        self._rehearsal = rehearsal_of(plan.setup, workers)
        self._rehearsal.cases_of(self._round(0), 1)  # so that each fork finds what this computes
        self.urgent = False
        """Whether a worker is ready, so that shards may wait for a round."""
        self._forks = Forks()
        self._next = 0
        self._sites: set[tuple[str, str, str]] = set()
        """Where the target refuses, as a worker has seen or will see."""

    def _round(self, number: int) -> SharedRound:
        return shared_round(self._domain, self._plan.seed, number, self._plan.covered)

    def step(self) -> Iterator[StageEvent]:
        """Start the forks that are wanted, wait a moment, and yield what became of those that have ended."""
        waiting = self._rounds.waiting()
        while len(self._forks) < forks_wanted(waiting, self._plan.cores):
            nice = 0 if self.urgent and not waiting else NICE
            self._forks.start(self._next, partial(self._compile, self._next), nice)
            self._next += 1
        for number, result in self._forks.ended(WAIT_SECONDS):
            yield from self._note(_outcome(number, result))

    def end(self) -> None:
        """End all forks and take back the rounds that are ready."""
        self._forks.kill()
        self._rounds.clear()

    def _note(self, outcome: Outcome) -> Iterator[StageEvent]:
        """Make a round ready. Of those whose cases are all refused, a worker sees one case of each refusing place."""
        ready, refusal = outcome.ready, outcome.refusal
        if not ready.cases and refusal is not None:
            if refusal.site not in self._sites:
                self._sites.add(refusal.site)
                ready = msgspec.structs.replace(ready, cases=1)
            elif outcome.order is not None:
                yield CaseRefused(WHOLE_RUN, "search", outcome.order, refusal)
        self._rounds.set_ready(ready)
        yield outcome.compiled

    def _compile(self, number: int) -> bytes:
        """Return the outcome of a round, in a fork; the usual variant is tried where the target refuses another."""
        started, shared = time.monotonic(), self._round(number)
        done, known = self._compile_most(shared)
        usual = done.refused is not None and shared.form.variant != USUAL
        if usual:
            done, known = self._compile_most(shared.usual())
        refused = None if self._plan.setup.strict else done.refused
        counts = done.compiled, done.loaded, done.failed
        compiled = RoundCompiled(WHOLE_RUN, number, *counts, known, time.monotonic() - started)
        ready = ReadyRound(number, known, usual, 0 if refused else CASES)
        return msgspec.json.encode(Outcome(compiled, ready, *(refused or ())))

    def _compile_most(self, shared: SharedRound) -> tuple[Compiled, bool]:
        """Compile the kernels that most cases of a round need; return also whether the kernels are known."""
        from fuzz_attn.engine.compiling.rehearsal import compile_most, known_kernels  # noqa: PLC0415 - imports torch

        rehearsed = self._rehearsal.cases_of(shared)
        done = compile_most(rehearsed, LATER_KERNELS if shared.turn else FIRST_KERNELS)
        return done, done.playable and known_kernels(rehearsed)


def _outcome(number: int, result: bytes) -> Outcome:
    """Return what a fork has sent. Of one that died nothing is known: the worker that plays the round reports it."""
    if result:
        return msgspec.json.decode(result, type=Outcome)
    return Outcome(RoundCompiled(WHOLE_RUN, number, 0, 0, 1, False, 0.0), ReadyRound(number, complete=False))


def rehearsal_of(setup: Setup, workers: Workers) -> Rehearsal:
    """Return the rehearsal of a target, called as the run's workers call it."""
    from fuzz_attn.backends.compiler import CompilerBackend  # noqa: PLC0415 - imports torch, as below
    from fuzz_attn.engine.compiling.rehearsal import Rehearsal  # noqa: PLC0415 - as above
    from fuzz_attn.targets.published.gpu_answers import gpu_answers  # noqa: PLC0415 - as above

    target = load_for(setup, workers.binding, workers.gpu)
    backend = CompilerBackend(partial(gpu_answers, answers_of(workers.gpu)))
    return Rehearsal(target, backend, workers.domain)


def rounds_compiled(
    plan: StagePlan, expected: Workers | None, ready: Callable[[float | None], Ready | None]
) -> Iterator[StageEvent]:
    """Compile rounds without end: at first as it is ``expected`` that the workers need them, and then as they say.

    ``ready`` waits so many seconds for what they say, or until they say it. If it is something else, all begins anew.
    """
    compiler, said = (None if expected is None else Compiler(plan, expected)), None
    while said is None:
        said = ready(0.0 if compiler is not None else None)
        if compiler is not None and said is None:
            yield from compiler.step()
    workers = workers_of(plan.setup, said)
    if compiler is None or workers != expected:
        if compiler is not None:
            compiler.end()
        compiler = Compiler(plan, workers)
    compiler.urgent = True
    while True:
        yield from compiler.step()


def main() -> None:
    """Serve the connection that the last argument of the command line names."""
    die_with_parent()
    connection = Connection(int(sys.argv[-1]))
    plan = msgspec.json.decode(connection.recv_bytes(), type=StagePlan)
    os.environ.pop("TRITON_INTERPRET", None)  # before the first import of Triton
    expected = ask_workers(plan.setup)
    importlib.import_module("fuzz_attn.engine.compiling.rehearsal")  # while the GPU is asked
    import torch  # noqa: PLC0415 - as above

    torch.set_num_threads(1)

    def ready(seconds: float | None) -> Ready | None:
        return msgspec.json.decode(connection.recv_bytes(), type=Ready) if connection.poll(seconds) else None

    for event in rounds_compiled(plan, expected(), ready):
        connection.send_bytes(msgspec.json.encode(event))


if __name__ == "__main__":
    main()
