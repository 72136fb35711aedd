"""The process of the compile stage: ``python -P -m fuzz_attn.engine.compiler`` compiles one run's kernels.

It receives a :class:`StagePlan` and later what the first worker is :class:`~fuzz_attn.engine.orders.Ready` for, and
sends a :class:`~fuzz_attn.engine.events.RoundCompiled` for each round. Starting the device takes a worker more than a
second, so it begins before that, where it can be told what the workers will say.

Each round is the work of one fork, which finds its kernels and compiles them. How many forks there are follows from how
many rounds are ready that no shard has begun.

*Reductions* are what the stage finds out about refusals, before they cost the shards of a run anything. A rehearsed
case that host code or Triton's front end refuses is reduced to the smallest refused combination, in a fork that needs
no GPU. All shards learn the rule, and the stage compiles nothing for compile keys that it excludes.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import msgspec

from fuzz_attn.backends import gpus
from fuzz_attn.backends.gpus import GpuFacts
from fuzz_attn.binding.binding import Binding
from fuzz_attn.engine.events import WHOLE_RUN, CaseRefused, RefusalReduced, RoundCompiled, StageEvent
from fuzz_attn.engine.orders import Order, Ready, Setup
from fuzz_attn.engine.rounds import CASES, ReadyRound, Rounds, StagePlan
from fuzz_attn.operations.operation import FULL_ROUND, MOST_REDUCTIONS, Probe, Rule, SharedRound
from fuzz_attn.operations.registry import FAMILIES, AnyCase, AnyDomain, HoldsCases, load_target, operation_of
from fuzz_attn.oracle.verdict import Refusal, Site
from fuzz_attn.workers.fork import Forks, die_with_parent

if TYPE_CHECKING:
    from fuzz_attn.engine.rehearsal import Compiled, Refused, Rehearsal
    from fuzz_attn.targets.gpu_answers import Gpu
    from fuzz_attn.targets.target import Target

AHEAD: Final = 2
"""So many rounds for each core are compiled that no shard has begun; then the stage rests."""
START_NICE: Final = 5
"""As long as no worker is ready, their start goes first. Then compiling goes before judging, which gives way by itself
(:data:`fuzz_attn.workers.worker.NICE`), until there is a round for each core that no shard has begun; but what follows
a failure goes before compiling."""
REST_NICE: Final = 10
"""From then on judging goes first."""
FIRST_KERNELS, LATER_KERNELS = 3, 12
"""How many kernels of a round are compiled in the first visit of its key and in later ones, in which all keys have been
visited once. Of the rounds that all workers wait for at first, only those of one case: a kernel takes up to 10 s."""
MOST_BEGUN: Final = 64
"""So many rounds are begun at once; the target may refuse nearly all of them, which costs nothing."""
WAIT_SECONDS: Final = 0.1
ANSWER_SECONDS: Final = 10.0
"""A GPU has to tell its kind within this time."""
KILL_SECONDS: Final = 1.0
"""A process that a driver holds may outlive its being killed."""


class Outcome(HoldsCases, frozen=True):
    """What a fork has found out about a round: what it compiled, some cases that compile, and cases that are refused.

    All cases are refused, for the reason of the first, where the round has none to play.
    """

    of_operations: ClassVar = ("accepted",)

    compiled: RoundCompiled
    ready: ReadyRound
    accepted: tuple[AnyCase, ...] = ()
    refused: tuple[tuple[Order, Refusal], ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether the target refuses all cases of the round."""
        return not self.ready.cases and bool(self.refused)


class _Tried(NamedTuple):
    """What compiling a round has come to: whether its kernels are ``known``, and cases that host code refuses.

    ``narrow`` says whether the round is narrowed.
    """

    done: Compiled
    known: bool
    refused: tuple[Refused, ...]
    narrow: bool


def forks_wanted(waiting: int, cores: int) -> int:
    """Return how many forks to compile with while so many rounds wait for a shard: all cores but one, down to none."""
    most, enough = max(1, cores - 1), AHEAD * cores
    return max(0, -(-most * (enough - waiting) // enough))


def niceness(waiting: int, followers: int, cores: int) -> int:
    """Return the niceness of new forks, while some rounds wait for a shard and some shards follow a failure."""
    if waiting >= cores:
        return REST_NICE
    return START_NICE if followers else 0


class Compiler:
    """Compiles the kernels of the next rounds."""

    def __init__(self, plan: StagePlan, workers: Workers) -> None:
        self._plan, self._domain = plan, workers.domain
        self._rounds = Rounds(Path(plan.folder))
        self._rehearsal = rehearsal_of(plan.setup, workers)
        self._rehearsal.cases_of(self._round(0), 1)  # so that each fork finds what this computes
        self.urgent = False
        """Whether a worker is ready, so that shards may wait for a round."""
        self._forks = Forks(most_aside=plan.cores)
        self._next = 0
        self._sites: set[Site] = set()
        """Where the target refuses, as a worker has seen or will see."""
        self._reductions = Reductions(self._domain, self._rounds)
        self._held: list[Outcome] = []
        """Refused rounds whose refusal is being reduced; then no worker need do that."""

    def _round(self, number: int) -> SharedRound:
        return operation_of(self._domain).shared_round(self._domain, self._plan.seed, number, self._plan.covered)

    def step(self) -> Iterator[StageEvent]:
        """Start the forks that are wanted, wait a moment, and yield what became of those that have ended."""
        waiting, followers = self._rounds.waiting(), self._rounds.followers()
        cores = max(1, self._plan.cores - followers)
        nice = niceness(waiting, followers, cores) if self.urgent else START_NICE
        for _ in range(MOST_BEGUN):
            if self._forks.at_work >= forks_wanted(waiting, cores):
                break
            self._begin(nice)
        for number, result in self._forks.ended(WAIT_SECONDS):
            if number < 0:
                yield from self._reduced(number, result)
            else:
                yield from self._note(_outcome(number, result), nice)

    def end(self) -> None:
        """End all forks and take back the rounds that are ready."""
        self._forks.kill()
        self._rounds.clear()

    def _begin(self, nice: int) -> None:
        """Let a fork compile the next round; one whose cases a rule says are all refused has none to play."""
        number = self._next
        self._next += 1
        if self._reductions.excludes(self._round(number).key, number):
            self._rounds.set_ready(ReadyRound(number, complete=False, cases=0))
        else:
            self._forks.start(number, partial(self._compile, number), nice)

    def _note(self, outcome: Outcome, nice: int) -> Iterator[StageEvent]:
        """Make a round ready, a refused one when it is known which combination is refused."""
        self._reductions.accepted(outcome.accepted)
        for number, refused in self._reductions.wanted(outcome.refused):
            reduce = partial(self._reductions.reduce, refused, self._rehearsal.refusals_of)
            self._forks.start(number, reduce, nice, awaited=True)
        yield outcome.compiled
        if outcome.is_refused:
            self._held.append(outcome)
            yield from self._release()
        else:
            self._rounds.set_ready(outcome.ready)

    def _reduced(self, number: int, result: bytes) -> Iterator[StageEvent]:
        """Take what a reduction has found; the rounds that waited for it become ready."""
        yield from self._reductions.ended(number, result)
        yield from self._release()

    def _release(self) -> Iterator[StageEvent]:
        """Make refused rounds ready whose refusal is not being reduced.

        A worker sees one case of each refusing place.
        """
        held, self._held = self._held, []
        for outcome in held:
            ready, (order, refusal) = outcome.ready, outcome.refused[0]
            if self._reductions.is_under_way(refusal.site):
                self._held.append(outcome)
                continue
            if refusal.site not in self._sites:
                self._sites.add(refusal.site)
                ready = msgspec.structs.replace(ready, cases=1)
            else:
                yield CaseRefused(WHOLE_RUN, "search", order, refusal)
            self._rounds.set_ready(ready)

    def _compile(self, number: int) -> bytes:
        """Return the outcome of a round, in a fork; the usual variant is tried where the target refuses another."""
        started, shared = time.monotonic(), self._round(number)
        most = LATER_KERNELS if shared.turn else FIRST_KERNELS if number >= self._plan.cores else 1
        tried = self._compile_most(shared, most)
        usual = tried.done.refused is not None and not shared.is_usual
        if usual:
            tried = self._compile_most(shared.usual(), most)
        done = tried.done
        counts = done.compiled, done.loaded, done.failed
        compiled = RoundCompiled(WHOLE_RUN, number, *counts, tried.known, time.monotonic() - started)
        strict = self._plan.setup.strict
        ready = ReadyRound(number, tried.known, usual, 0 if done.refused and not strict else CASES, tried.narrow)
        if strict:
            return msgspec.json.encode(Outcome(compiled, ready))
        refused = tried.refused if done.refused is None else (done.refused,)
        return msgspec.json.encode(Outcome(compiled, ready, tuple(done.accepted), refused))

    def _compile_most(self, shared: SharedRound, most: int) -> _Tried:
        """Compile up to ``most`` kernels of a round, those that most of its cases need.

        A round whose cases need many kernels is narrowed, if that saves some.
        """
        from fuzz_attn.engine.rehearsal import (  # noqa: PLC0415 - imports torch
            compile_most,
            kernels_of,
            known_kernels,
            refused_among,
        )

        rehearsed, narrow = self._rehearsal.cases_of(shared), False
        needed = len(kernels_of(rehearsed))
        if needed > max(most, FIRST_KERNELS):
            narrowed = self._rehearsal.cases_of(shared.narrow(self._domain))
            if narrow := len(kernels_of(narrowed)) < needed:
                rehearsed = narrowed
        done = compile_most(rehearsed, most)
        return _Tried(done, done.playable and known_kernels(rehearsed), refused_among(rehearsed), narrow)


def _outcome(number: int, result: bytes) -> Outcome:
    """Return what a fork has sent. Of one that died nothing is known: the worker that plays the round reports it."""
    if result:
        return msgspec.json.decode(result, type=Outcome)
    return Outcome(RoundCompiled(WHOLE_RUN, number, 0, 0, 1, False, 0.0), ReadyRound(number, complete=False))


def rehearsal_of(setup: Setup, workers: Workers) -> Rehearsal:
    """Return the rehearsal of a target, called as the run's workers call it."""
    from fuzz_attn.backends.compiler import CompilerBackend  # noqa: PLC0415 - imports torch, as below
    from fuzz_attn.engine.rehearsal import Rehearsal  # noqa: PLC0415 - as above
    from fuzz_attn.targets.gpu_answers import gpu_answers  # noqa: PLC0415 - as above

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
    importlib.import_module("fuzz_attn.engine.rehearsal")  # while the GPU is asked
    import torch  # noqa: PLC0415 - as above

    torch.set_num_threads(1)

    def ready(seconds: float | None) -> Ready | None:
        return msgspec.json.decode(connection.recv_bytes(), type=Ready) if connection.poll(seconds) else None

    for event in rounds_compiled(plan, expected(), ready):
        connection.send_bytes(msgspec.json.encode(event))


class Reductions:
    """The rules of a run's compile stage, and the reductions that are under way.

    :meth:`wanted` says which refused cases to reduce, :meth:`reduce` does it in a fork, and :meth:`ended` takes what
    the fork has found.
    """

    def __init__(self, domain: AnyDomain, rounds: Rounds) -> None:
        self._refusals = operation_of(domain).refusals(domain)
        self._rounds = rounds
        self._under_way: dict[int, Site] = {}
        self._begun: Counter[Site] = Counter()
        self._next = -1

    def accepted(self, cases: Iterable[AnyCase]) -> None:
        """Note cases whose kernels are compiled; rules that exclude one are dropped."""
        for case in cases:
            self._refusals.judged(case)

    def excludes(self, key: Any, number: int) -> bool:
        """Return whether a round of a compile key need not be compiled; now and then it is, to check the rules."""
        return number % FULL_ROUND != FULL_ROUND - 1 and self._refusals.excludes_key(key)

    def wanted(self, refused: Iterable[Refused]) -> list[tuple[int, Refused]]:
        """Return the refused cases that no rule explains, each with the number of its reduction.

        No place is reduced twice at the same time, by the stage or a shard, because both would find the same rule.
        """
        return [
            (self._start(refusal.site), (order, refusal))
            for order, refusal in refused
            if self._is_new(order.case, refusal.site)
        ]

    def _is_new(self, case: AnyCase, site: Site) -> bool:
        busy = site in self._under_way.values() or self._begun[site] >= MOST_REDUCTIONS
        known = busy or any(rule.matches(case) for rule in self._refusals.rules)
        return not known and self._rounds.claim(site)

    def _start(self, site: Site) -> int:
        """Return the number of a new reduction, below those of rounds."""
        number, self._next = self._next, self._next - 1
        self._under_way[number] = site
        self._begun[site] += 1
        return number

    def is_under_way(self, site: Site) -> bool:
        """Return whether a place's refusal is being reduced."""
        return site in self._under_way.values()

    def reduce(self, refused: Refused, probe: Probe) -> bytes:
        """Return the rules that a refused case leads to, as bytes, in a fork."""
        order, refusal = refused
        rules = self._refusals.refused(order.case, refusal, probe)
        return msgspec.json.encode([self._refusals.told(rule)[1] for rule in rules])

    def ended(self, number: int, result: bytes) -> list[RefusalReduced]:
        """Take what a reduction has found, and tell the shards; a fork that died has found nothing."""
        site = self._under_way.pop(number)
        found = msgspec.json.decode(result, type=list[bytes]) if result else []
        rules = [rule for each in found if (rule := self._refusals.heard(each)) is not None]
        learned = [self._learned(rule) for rule in rules if self._learn(rule)]
        self._rounds.release(site)  # not before the shards can learn the rules
        return learned

    def _learn(self, rule: Rule) -> bool:
        self._refusals.learn([rule])
        return rule in self._refusals.rules

    def _learned(self, rule: Rule) -> RefusalReduced:
        self._rounds.tell(*self._refusals.told(rule))
        return RefusalReduced(WHOLE_RUN, rule.refusal, rule.words(self._refusals.full))


class Workers(NamedTuple):
    """The GPU of the workers, the domain that they draw from, and how they call the target."""

    gpu: GpuFacts
    domain: AnyDomain
    binding: Binding | None


def workers_of(setup: Setup, ready: Ready) -> Workers:
    """Return what a worker says when it is ready on its GPU."""
    assert ready.gpu is not None
    return Workers(ready.gpu, ready.domain, setup.binding if ready.published else ready.binding)


def ask_workers(setup: Setup) -> Callable[[], Workers | None]:
    """Return what waits for what workers on a GPU will say of a built-in target: None for others, or without a GPU.

    Others may have to be calibrated on the GPU, and their module may bear to be executed only once.
    """
    if setup.target not in FAMILIES or setup.binding is not None:
        return lambda: None
    answer = ask_gpu()

    def workers() -> Workers | None:
        gpu = answer()
        return None if gpu is None else Workers(gpu, load_for(setup, None, gpu).domain.on_gpu(), None)

    return workers


def ask_gpu() -> Callable[[], GpuFacts | None]:
    """Let a fork ask the GPU, because a process that has started CUDA cannot fork. Return what waits for the answer.

    The answer is None where there is none in time.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_tell_gpu, args=(sender,), daemon=True)
    process.start()
    sender.close()

    def answer() -> GpuFacts | None:
        try:
            return receiver.recv() if receiver.poll(ANSWER_SECONDS) else None
        except EOFError:
            return None
        finally:
            receiver.close()
            process.kill()
            process.join(KILL_SECONDS)

    return answer


def _tell_gpu(sender: Connection) -> None:
    """Send what the GPU is; nothing where there is none that works."""
    die_with_parent()
    with contextlib.suppress(Exception):  # a driver may raise anything, and a worker reports it
        sender.send(gpus.gpu_facts())


def load_for(setup: Setup, binding: Binding | None, gpu: GpuFacts) -> Target:
    """Return the target of a run, loaded as in a process with a GPU."""
    from fuzz_attn.targets.gpu_answers import gpu_answers  # noqa: PLC0415 - imports torch

    with gpu_answers(answers_of(gpu)):
        return load_target(setup.target, setup.family, binding)


def answers_of(gpu: GpuFacts) -> Gpu:
    """Return what a launcher is told about a GPU."""
    from fuzz_attn.targets.gpu_answers import Gpu  # noqa: PLC0415 - imports torch

    return Gpu(gpu[:2], gpu[2])


if __name__ == "__main__":
    main()
