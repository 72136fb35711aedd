"""The process of the compile stage: ``python -P -m fuzz_attn.engine.compiling.compiler`` compiles one run's kernels.

It receives a :class:`StagePlan` and later what the first worker is :class:`~fuzz_attn.engine.messages.Ready` for, and
sends a :class:`~fuzz_attn.engine.events.RoundCompiled` for each round. Starting the device takes a worker more than a
second, so the first round is compiled before that, where it can be told what the workers will say.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fuzz_attn.engine.child.fork import die_with_parent
from fuzz_attn.engine.compiling.pool import COMPILED, FAILED, FOUND, compile_all
from fuzz_attn.engine.compiling.rounds import AHEAD, POLL_SECONDS, Rounds, StagePlan
from fuzz_attn.engine.compiling.workers import Workers, answers_of, ask_workers, load_for, workers_of
from fuzz_attn.engine.events import WHOLE_RUN, RoundCompiled
from fuzz_attn.engine.messages import Ready, Setup
from fuzz_attn.engine.schedule import SAMPLE, shared_round

if TYPE_CHECKING:
    from fuzz_attn.engine.compiling.rehearsal import Rehearsal

NICE: Final = 5
"""Judging goes first: the compiler takes what cores the workers leave, and a small part of the others."""
FIRST_SAMPLE: Final = 60
"""The sample of the first round is small, because all workers wait for it."""


class Compiler:
    """Compiles the kernels of one round after the other."""

    def __init__(self, plan: StagePlan, workers: Workers) -> None:
        self._plan, self._domain = plan, workers.domain
        self._rounds = Rounds(Path(plan.folder))
        self._rehearsal = rehearsal_of(plan.setup, workers)

    def compile_round(self, number: int) -> RoundCompiled:
        """Compile the kernels of a round, the first with all cores, because no worker has a case before."""
        started, plan, first = time.monotonic(), self._plan, number == 0
        shared = shared_round(self._domain, plan.seed, number, plan.covered)
        needed = self._rehearsal.kernels_of(shared, FIRST_SAMPLE if first else SAMPLE)
        done = compile_all(needed.kernels, plan.cores if first else max(1, plan.cores // 2), 0 if first else NICE)
        if not done[FAILED]:
            self._rehearsal.compiled(needed.kernels)
        complete = needed.complete and not done[FAILED]
        self._rounds.set_ready(number, complete=complete)
        seconds = time.monotonic() - started
        return RoundCompiled(WHOLE_RUN, number, done[COMPILED], done[FOUND], done[FAILED], complete, seconds)

    def wait_for(self, number: int) -> None:
        """Wait until the shards have come close to a round."""
        while number >= AHEAD and not self._rounds.begun(number - AHEAD):
            time.sleep(POLL_SECONDS)


def rehearsal_of(setup: Setup, workers: Workers) -> Rehearsal:
    """Return the rehearsal of a target, called as the run's workers call it."""
    from fuzz_attn.backends.compiler import CompilerBackend  # noqa: PLC0415 - imports torch, as below
    from fuzz_attn.engine.compiling.rehearsal import Rehearsal  # noqa: PLC0415 - as above
    from fuzz_attn.targets.published.gpu_answers import gpu_answers  # noqa: PLC0415 - as above

    target = load_for(setup, workers.binding, workers.gpu)
    backend = CompilerBackend(partial(gpu_answers, answers_of(workers.gpu)))
    return Rehearsal(target, backend, workers.domain)


def rounds_compiled(plan: StagePlan, expected: Workers | None, ready: Callable[[], Ready]) -> Iterator[RoundCompiled]:
    """Compile rounds: the first as it is ``expected`` that the workers need it, the others as they say.

    It is compiled again where they say something else.
    """
    compiler = None
    if expected is not None:
        compiler = Compiler(plan, expected)
        yield compiler.compile_round(0)
    said = workers_of(plan.setup, ready())
    if compiler is None or said != expected:
        compiler = Compiler(plan, said)
        yield compiler.compile_round(0)
    for number in count(1):
        compiler.wait_for(number)
        yield compiler.compile_round(number)


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
    for done in rounds_compiled(plan, expected(), lambda: msgspec.json.decode(connection.recv_bytes(), type=Ready)):
        connection.send_bytes(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
