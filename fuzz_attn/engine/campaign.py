"""Campaign: one shard of a fuzz test. Cases are drawn and judged by an isolated worker; failures are followed.

Saved counterexamples are played first. Then rounds of drawn cases follow each other until the budget of time or cases
is spent. Every failure is saved, confirmed, shrunk and classified (:mod:`fuzz_attn.engine.failures.life`), and the
search goes on around it: most cases that would only show it again are drawn anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from fuzz_attn import counterexamples
from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.contract_trial import is_refused, trial_of
from fuzz_attn.counterexamples import Counterexample, only_says_how
from fuzz_attn.engine.events import (
    CaseJudged,
    CaseNotCompiled,
    CaseRefused,
    CaseUnfinished,
    CaseUnsupported,
    Emit,
    Finished,
    News,
    Note,
    Phase,
    RefusalReduced,
    WorkerLost,
    WorkerReady,
    ignore,
    no_news,
    time_to_fuzz,
)
from fuzz_attn.engine.failures import confirmation
from fuzz_attn.engine.failures.confirmation import LAST_CASES
from fuzz_attn.engine.failures.life import LAST_PART, FailureLives
from fuzz_attn.engine.failures.saved import play_saved
from fuzz_attn.engine.isolated_worker import EXPLAINING, LAUNCH_SECONDS, Explainer, IsolatedWorker, Wait
from fuzz_attn.engine.orders import Answer, Order, Ready, Setup
from fuzz_attn.engine.rounds import POLL_SECONDS, ReadyRound, Rounds, StagePlan
from fuzz_attn.engine.run_folder import POSSIBLE_HANG, Journal
from fuzz_attn.engine.schedule import (
    ON_GPU,
    play_round,
    play_shared_round,
    size_on_cpu,
)
from fuzz_attn.errors import (
    BudgetSpentInterrupt,
    CounterexampleError,
    FuzzAttnError,
    OutOfProbesError,
    OutOfTimeError,
)
from fuzz_attn.operations.calls.call_case import CallDraws
from fuzz_attn.operations.contract_draws import ContractDraws
from fuzz_attn.operations.operation import Refusals, Rule, SharedRound, derived_seed
from fuzz_attn.operations.registry import AnyCase, operation_of
from fuzz_attn.oracle.verdict import Refusal, Verdict

HANG_SHARE, SHORTEST_HANG = 0.25, 5.0
RESERVED: Final = 0.25
"""At most this part of the time is left at the end for what a last case shows, where failures have been found before.

It is as long as following one of them has taken. Some cases more are worth less than a row that is shrunk."""
GRACE_SECONDS: Final = 5.0
"""A failure that was found just before the end may still be confirmed for this long."""
AVOIDED: Final = 0.75
"""The part of the cases with the trigger of a known failure that is drawn again.

A larger part finds bugs later that need the same features, a smaller one those that need others.
"""
AVOIDED_HANGS, MOST_HANGING = 0.98, 0.05
"""The part of those with the trigger of a known hang, each of which takes as long as hundreds of other cases, and the
part of the time that the rest may take where it is limited: in a round of one key, all may have the trigger."""
MOST_MISSING: Final = 0.5
"""Where more cases than this part would have to wait for the compiler, the compile stage does not know the target: then
cases may wait."""
FIRST_MISSING: Final = 120
"""So many cases more may be missing at first, because one round says little."""
_AVOIDING: Final = 4
"""The index of the stream of random numbers that decides which cases are drawn again."""
_CALLING: Final = 5
"""The index of the stream of random numbers that makes sequences of calls of drawn cases."""
_TRYING: Final = 6
"""The index of the stream of random numbers that makes contract trials of drawn cases."""
UNFINISHED: Final = Verdict("oracle", "crash", "the campaign itself ended while this case was running")
"""The verdict on a case in the journal."""


@dataclass(frozen=True)
class Plan:
    """The work of one shard. ``max_time`` in seconds and ``max_cases`` are the shard's own; None has no limit.

    ``run_folder`` is for statistics and the journal, ``fixtures`` for counterexamples, with a folder for each target.
    ``worker`` is the number of the shard on its machine, by default that of the shard: the first one plays the saved
    counterexamples, and the GPUs are given to them in turn.
    """

    setup: Setup
    shard: int
    shards: int
    seed: int
    max_time: float | None
    max_cases: int | None
    run_folder: Path
    fixtures: Path
    worker: int | None = None
    covered: frozenset[int] = frozenset()
    """The numbers of compile keys that earlier runs have covered; others are drawn first."""
    saved: frozenset[str] | None = None
    """The counterexamples from before the run, by their paths below ``fixtures``; None where all are from before.

    Other shards may have saved what they found before this one has its worker.
    """
    begun: float | None = None
    """When the run began, a time of ``time.time``, as starting takes a part of its time; None where it takes none."""
    stage: StagePlan | None = None
    """What compiles the kernels of a GPU ahead of their cases; None where the shard compiles its own."""

    @property
    def place(self) -> int:
        """The number of the shard on its machine."""
        return self.shard if self.worker is None else self.worker


class Campaign:
    """One shard, run once by :meth:`run`, which emits an event for all that happens.

    ``worker`` judges its cases, by default one for the plan's set-up. ``news`` returns failures of other shards.
    ``explaining`` judges what the worker has found, by default one in the simulator if the worker is on a GPU.
    """

    def __init__(
        self,
        plan: Plan,
        emit: Emit = ignore,
        worker: IsolatedWorker | None = None,
        news: News = no_news,
        explaining: IsolatedWorker | None = None,
    ) -> None:
        self.plan = plan
        self.emit = emit
        self.news = news
        self.worker = worker or self._worker_for(plan.setup)
        self.explainer: Explainer | None = None
        self._explaining = explaining
        self.cases = 0
        """Cases judged in the search, which the limit of cases counts."""
        self._deadline: float | None = None
        self._started = 0.0
        self._ready: Ready | None = None
        self._unfinished = False
        self._told: set[str] = set()
        self._refusals = Refusals(None)
        self._covered = set(plan.covered)
        self._last: deque[Order] = deque(maxlen=LAST_CASES[-1])
        """The last cases that the worker's process has judged."""
        self._rounds = None if plan.stage is None else Rounds(Path(plan.stage.folder))
        self._waited = self._missing = self._hung = 0.0
        self._compiled = False
        self._own_rounds = 0
        self._suspects: list[AnyCase] = []
        """Probes of a refusal one of which ended its process: each is judged as a case of the search."""
        self._random = Random(derived_seed(plan.seed, plan.shard, -_AVOIDING))  # noqa: S311 - nothing secret
        self._lives = FailureLives(self, plan.shard, self.folder, plan.max_time, self.elapsed)

    @property
    def launch_seconds(self) -> float:
        """After how many seconds a launch counts as a hang."""
        return self.worker.launch_seconds

    @property
    def ready(self) -> Ready:
        """The worker's target, backend and domain."""
        return self.worker.ready

    @property
    def keeps(self) -> bool:
        """Whether the target is seen to keep something between calls."""
        return bool(self._calls.keeps)

    def folder(self) -> Path:
        """Return the folder of the target's counterexamples."""
        return self.plan.fixtures / self.ready.slug

    def elapsed(self) -> float:
        """Return the seconds since the shard began to fuzz."""
        return time.monotonic() - self._started

    def run(self) -> None:
        """Play saved counterexamples, then fuzz until the budget is spent; an interrupt loses no failure."""
        self._started = time.monotonic()
        try:
            with ExitStack() as stack:
                self._start_worker(stack)
                self._add_explainer(stack)
                self._run()
        except BaseException as error:
            self._finish(str(error) or type(error).__name__)
            raise
        self._finish("")

    def _start_worker(self, stack: ExitStack) -> None:
        """Start the worker. A target that cannot be called without a binding is called as a saved failure says."""
        try:
            stack.enter_context(self.worker)
        except FuzzAttnError as error:
            saved = None if self.plan.setup.binding else _saved_with_binding(self.plan)
            if saved is None:
                raise
            path, binding = saved
            if not only_says_how(binding):
                raise CounterexampleError(
                    f"{error}; the binding in {path} is not used, because it chooses values or what counts as wrong: "
                    "pass --binding FILE if the target needs it"
                ) from error
            self.worker = self._worker_for(msgspec.structs.replace(self.plan.setup, binding=binding))
            try:
                stack.enter_context(self.worker)
            except FuzzAttnError:
                raise error from None  # the binding is not what is wrong
            self._tell([f"it is called as {path} says, because {error}"])

    def _add_explainer(self, stack: ExitStack) -> None:
        """Let another worker explain failures where this one is on a GPU."""
        on_gpu = self.ready.device != "cpu"
        worker = self._explaining or (self.worker.other(EXPLAINING) if on_gpu else None)
        if worker is not None:
            self.explainer = Explainer(worker, self.plan.shard, self.emit, self._deadline_of, self._learn)
            stack.callback(self.explainer.end)

    def _worker_for(self, setup: Setup) -> IsolatedWorker:
        return IsolatedWorker(setup, launch_seconds=launch_limit(self.plan.max_time), index=self.plan.place)

    def _finish(self, error: str) -> None:
        self.emit(Finished(self.plan.shard, self.elapsed(), error, waited=self._waited))

    def _run(self) -> None:
        self._started = time.monotonic()
        if self.plan.max_time is not None:
            starting = 0.0 if self.plan.begun is None else time.time() - self.plan.begun
            left = time_to_fuzz(self.plan.max_time, starting)
            self.plan = dataclasses.replace(self.plan, max_time=left)
            self._lives.limit_to(left)
            self._deadline = self._started + left
        self._introduce()
        single = operation_of(self.ready.domain)
        self._refusals = single.refusals(self.ready.domain)
        random = Random(derived_seed(self.plan.seed, self.plan.shard, -_CALLING))  # noqa: S311 - nothing secret
        self._calls = CallDraws(single, self.ready.domain, random, streams=self.ready.device == "cuda")
        random = Random(derived_seed(self.plan.seed, self.plan.shard, -_TRYING))  # noqa: S311 - nothing secret
        on_gpu = self.ready.device != "cpu"
        self._contracts = ContractDraws(single, self.ready.domain, self.ready.binding, random, on_gpu=on_gpu)
        self._journal = Journal(self.plan.run_folder / f"journal-{self.plan.shard}.json")
        broken = False
        try:
            self._search()
        except BaseException as error:
            broken = isinstance(error, Exception)  # the case in the journal caused it, unlike an interrupt
            raise
        finally:
            self._journal.close(keep=broken or self._unfinished)
            self._lives.close()
            if self._suspects:
                self._tell([f"the worker ended in probes of a refusal, and {len(self._suspects)} were not run again"])

    def _introduce(self) -> None:
        """Emit that the worker is ready, and again when another one has replaced it."""
        if self.worker.ready is not self._ready:
            self._ready = self.worker.ready
            self.emit(WorkerReady(self.plan.shard, self._ready))
            self._tell(self._ready.notes)

    def _tell(self, notes: Iterable[str]) -> None:
        """Emit each note once: every new worker learns the same of its target."""
        for note in notes:
            if note not in self._told:
                self._told.add(note)
                self.emit(Note(self.plan.shard, note))

    def _search(self) -> None:
        number = 0
        if self._covered:
            left, every = operation_of(self.ready.domain).uncovered(self.ready.domain, self._covered)
            self._tell([f"{left} of {every} compile keys were not covered by earlier runs: they are drawn first"])
        with contextlib.suppress(BudgetSpentInterrupt):
            if not self.plan.place:
                play_saved(self, self._lives, self._saved_files(), self.ready.domain)
            while self._has_budget() and not self._refusals.hopeless(self._rounds_tried()):
                self._round(number)
                number += 1
        with contextlib.suppress(BudgetSpentInterrupt):
            self._follow_open(self._has_waiting)

    def _saved_files(self) -> list[Path]:
        """Return the target's counterexamples from before the run."""
        files, saved = sorted(self.folder().rglob("*.json")), self.plan.saved
        return [path for path in files if saved is None or str(path.relative_to(self.plan.fixtures)) in saved]

    def _rounds_tried(self) -> int:
        """Return the number of rounds, those of one compile key counted as part of one."""
        return self._own_rounds + (0 if self._rounds is None else self._rounds.played // ON_GPU.keys)

    def _has_budget(self) -> bool:
        return self._has_time() and (self.plan.max_cases is None or self.cases < self.plan.max_cases)

    def _seconds_left(self) -> float:
        """Return the seconds that unfinished shrinking may take from now on; 0 as long as the search comes first."""
        if self.plan.max_time is None or self.elapsed() < LAST_PART * self.plan.max_time:
            return 0.0
        return max(0.0, self.plan.max_time - self.elapsed())

    def _could_not_follow(self) -> bool:
        """Return whether a failure that the next case shows could not be followed as long as earlier ones were."""
        if self.plan.max_time is None:
            return False
        return self.elapsed() > self.plan.max_time - min(self._lives.longest, RESERVED * self.plan.max_time)

    def _has_time(self) -> bool:
        return self._deadline is None or time.monotonic() < self._deadline

    def _round(self, number: int) -> None:
        """Try cases of a round whose kernels are compiled; without any, those of a round of this shard's own."""
        if self._rounds is None or self.ready.device == "cpu":
            self._own_round(number)
            return
        started = time.monotonic()
        self._shared(0)  # takes half a second, once: while the first kernels are compiled
        ready = self._rounds.next(self._random, self._may_wait)
        self._waited += time.monotonic() - started
        if ready is None:
            self._own_round(number)
        else:
            self._shared_round(number, ready)

    def _may_wait(self) -> bool:
        self._learn()
        return self._has_time()

    def _shared_round(self, number: int, ready: ReadyRound) -> None:
        """Try cases of a round that is compiled, the same for all shards."""
        self._learn_refusals()
        domain, excludes = self._refusals.drawing(number)
        shared = self._shared(ready.number)
        shared = shared.usual() if ready.usual else shared
        shared = shared.narrow(self.ready.domain) if ready.narrow else shared
        if not operation_of(domain).may_play(shared, domain, excludes):
            time.sleep(POLL_SECONDS)  # the next round may be ready then
            return
        seed = derived_seed(self.plan.seed, self.plan.shard, number)
        self._compiled = ready.complete and self._missing < MOST_MISSING * (self.cases + FIRST_MISSING)
        try:
            play_shared_round(domain, shared, seed, self._cases_left(ready.cases), self._try, self._skips)
        finally:
            self._compiled = False

    def _learn_refusals(self) -> None:
        """Learn what the target refuses, as other shards have found out."""
        assert self._rounds is not None
        rules = (self._refusals.heard(found) for found in self._rounds.told())
        self._refusals.learn(rule for rule in rules if rule is not None)

    def _shared(self, number: int) -> SharedRound:
        """Return the shared round of a number."""
        assert self.plan.stage is not None
        domain, stage = self.ready.domain, self.plan.stage
        return operation_of(domain).shared_round(domain, stage.seed, number, stage.covered)

    def _cases_left(self, most: int) -> int:
        return most if self.plan.max_cases is None else min(most, self.plan.max_cases - self.cases)

    def _own_round(self, number: int) -> None:
        """Try the cases of one round."""
        self._own_rounds += 1
        ready = self.worker.ready
        size = size_on_cpu(number) if ready.device == "cpu" else ON_GPU
        round_seed = derived_seed(self.plan.seed, self.plan.shard, number)
        domain, excludes = self._refusals.drawing(number)
        number_of_cases = self._cases_left(size.cases)
        play_round(domain, round_seed, number_of_cases, self._try, size, excludes, self._skips, self._covered)

    def _skips(self, case: AnyCase, relation: str | None) -> bool:
        """Return whether to draw another case: as a rule with a known trigger that harmless poison cannot take away."""
        order = Order(case, relation)
        if self._lives.known.hangs(order):
            too_long = self.plan.max_time is not None and self._hung > MOST_HANGING * self.elapsed()
            return too_long or self._random.random() < AVOIDED_HANGS
        return self._lives.known.around(order) is None and self._random.random() < AVOIDED

    def _try(self, case: AnyCase, relation: str | None) -> None:
        if self._refusals.excludes(case):
            return
        order = self._around(Order(case, relation))
        self._judge_drawn(self._on_trial(order) or self._in_sequence(order))
        while self._suspects and self._has_time():
            self._judge_drawn(Order(self._suspects.pop()))

    def _on_trial(self, order: Order) -> Order | None:
        """Return the order as a contract trial, now and then, unless that shows a known failure."""
        case = self._contracts.trial_of(order.case) if self.ready.contracts else None
        if case is None:
            return None
        trial = Order(case)
        return None if self._lives.known.avoids(trial) and self._random.random() < AVOIDED else trial

    def _in_sequence(self, order: Order) -> Order:
        """Return the order, now and then with earlier calls of the target, unless they show a known failure."""
        sequence = self._calls.sequence_of(order.case) if self.ready.calls else None
        if sequence is None:
            return order
        calls = Order(sequence)
        return order if self._lives.known.avoids(calls) and self._random.random() < AVOIDED else calls

    def _judge_drawn(self, order: Order) -> None:
        """Judge a case of the search; count or follow what it shows."""
        self._follow_open(self._is_full)
        if self._could_not_follow():
            raise BudgetSpentInterrupt
        before = tuple(self._last)
        answer = self.judge(order, "search")
        if not answer.verdict.passed:
            with self._following():
                self._lives.meet(order, answer, before)
        elif answer.judged and answer.earlier is not None:
            self._lives.excuse(order, answer.earlier, before)

    def _follow_open(self, waits: Callable[[], bool]) -> None:
        """Follow failures that wait no longer for other shards, as long as it ``waits``, and go on with shrinking."""
        if not self._lives.waiting and not self._seconds_left():
            return
        with self._following():
            self._lives.follow_waiting()
            while waits() and self._has_time():
                time.sleep(POLL_SECONDS)
                self._learn()
                self._lives.follow_waiting()
            self._lives.resume(self._seconds_left())

    def _has_waiting(self) -> bool:
        return bool(self._lives.waiting)

    def _is_full(self) -> bool:
        return self._lives.waiting.full

    def _following(self) -> AbstractContextManager[None]:
        """Let the compile stage leave the shard's core to what follows failures."""
        return contextlib.nullcontext() if self._rounds is None else self._rounds.following(self.plan.shard)

    def _around(self, order: Order) -> Order:
        """Return the order, most often with harmless poison where it would only show a known failure."""
        around = self._lives.known.around(order)
        return around if around is not None and self._random.random() < AVOIDED else order

    def _learn(self) -> None:
        """Learn what other shards have found."""
        self._lives.learn(self.news())

    def renew(self) -> None:
        """Let the next case be judged by a process that has judged none."""
        self.worker.renew()
        self._last.clear()

    def judge(self, order: Order, phase: Phase) -> Answer:
        """Return the answer to an order; raises :class:`BudgetSpentInterrupt` when the time is up."""
        deadline = self._deadline_of(phase)
        self._learn()
        self._journal.write(msgspec.json.encode(self.signed(order, UNFINISHED)))
        deaths, started, wait = self.worker.deaths, time.monotonic(), self._wait(order, phase)
        try:
            only_compiled = self._compiled and phase == "search" and trial_of(order.case) is None
            asked = msgspec.structs.replace(order, compiled=order.compiled or only_compiled)
            order = msgspec.structs.replace(order, compiled=False)
            answer = self.worker.judge(asked, deadline=deadline, wait=wait)
        except OutOfTimeError:
            self._unfinished = time.monotonic() - started >= POSSIBLE_HANG
            self.emit(CaseUnfinished(self.plan.shard, order, time.monotonic() - started))
            raise BudgetSpentInterrupt from None
        self._introduce()
        self._hung += (time.monotonic() - started) * (phase == "search" and wait == "short")
        if answer.missing:
            if phase == "search":
                self._missing += 1
                self.emit(CaseNotCompiled(self.plan.shard))
            return answer
        self.cases += phase == "search" and not is_refused(order.case, answer.verdict.message)
        if phase in ("search", "saved") and not answer.verdict.passed:
            self._lives.answered(order, answer)
        died = self.worker.deaths > deaths
        self._keep(order, answer, died=died)
        if died:
            self.emit(WorkerLost(self.plan.shard, (answer.earlier or answer.verdict).message))
        self._tell(answer.notes)
        self._learn_kept(answer.keeps)
        if answer.refusal:
            self._refuse(order, phase, answer.refusal)
        if answer.unsupported:
            self.emit(CaseUnsupported(self.plan.shard, phase, order, answer.unsupported, answer.instead))
        if self._covered:
            self._covered.add(order.case.compile_key.number)
        if answer.judged:
            for case in operation_of(order.case).judged_alone(order.case):
                self._refusals.judged(case)
            self.emit(self._judged(order, phase, answer, time.monotonic() - started))
        return answer

    def _learn_kept(self, keeps: Sequence[str]) -> None:
        """Tell what the target is seen to keep between calls, and let more cases be sequences of calls."""
        new = [each for each in keeps if each not in self._calls.keeps]
        if new:
            self._calls.keeps.update(new)
            self._tell([f"The target keeps between calls: {', '.join(new)}."])

    def _deadline_of(self, phase: Phase) -> float | None:
        """Return when the time of a phase is up; raises :class:`BudgetSpentInterrupt` when that was before."""
        if phase == "confirm" and self._deadline is not None:
            return self._deadline + GRACE_SECONDS
        if not self._has_time():
            raise BudgetSpentInterrupt
        return self._deadline

    def _keep(self, order: Order, answer: Answer, *, died: bool) -> None:
        """Keep the orders that the worker's process has judged: none where it ended, this one if it began with that."""
        ended = answer.verdict.kind == "timeout" or (died and answer.earlier is None)
        if ended or died or answer.earlier is not None:
            self._last.clear()
        if not ended:
            self._last.append(order)

    def _wait(self, order: Order, phase: Phase) -> Wait:
        """Return how long an order may take: only what makes a new failure, or confirms one, needs the full limit."""
        if phase == "shrink" or (phase == "search" and self._lives.known.hangs(order)):
            return "short"
        return "short, then full" if phase == "search" else "full"

    def _refuse(self, order: Order, phase: Phase, refusal: Refusal) -> None:
        """Emit that a case is refused; a case of the search also shows what else is."""
        self.emit(CaseRefused(self.plan.shard, phase, order, refusal))
        if phase == "search":
            self.cases -= 1
            for case in operation_of(order.case).judged_alone(order.case):
                self._reduce_refusal(case, refusal)

    def _reduce_refusal(self, case: AnyCase, refusal: Refusal) -> None:
        """Find out what else is refused for a reason, unless another process does; that takes hundreds of probes."""
        if self._rounds is None:
            self._rules_for(case, refusal)
        elif self._rounds.claim(refusal.site):
            try:
                self._learn_refusals()
                for rule in self._rules_for(case, refusal):
                    self._rounds.tell(*self._refusals.told(rule))
            finally:
                self._rounds.release(refusal.site)

    def _rules_for(self, case: AnyCase, refusal: Refusal) -> tuple[Rule, ...]:
        """Return the rules that a refused case leads to, and report them."""
        probe = partial(self._probe, host_only=refusal.stage == "host")
        rules = self._refusals.refused(case, refusal, probe)
        for rule in rules:
            self.emit(RefusalReduced(self.plan.shard, rule.refusal, rule.words(self._refusals.full)))
        return rules

    def _probe(self, cases: Sequence[AnyCase], *, host_only: bool) -> Sequence[Refusal | None]:
        """Return the refusals of cases; raises OutOfProbesError when the time is up or the target dies."""
        try:
            answer = self.worker.judge(
                Order(cases[0], probes=tuple(cases), host_only=host_only), deadline=self._deadline
            )
        except OutOfTimeError:
            raise OutOfProbesError from None
        if len(answer.refusals) != len(cases):
            self._suspects += cases
            raise OutOfProbesError
        return answer.refusals

    def _judged(self, order: Order, phase: Phase, answer: Answer, seconds: float) -> CaseJudged:
        verdicts = (answer.verdict, *answer.others)
        kernels = answer.compiled, answer.loaded, answer.compiling
        case_judged = CaseJudged(self.plan.shard, phase, order, verdicts, seconds, answer.masks, *kernels)
        return msgspec.structs.replace(case_judged, configurations=answer.configurations)

    def signed(self, order: Order, verdict: Verdict) -> Counterexample:
        """Return a counterexample of an order, with its relation only where that may have caused the failure."""
        return confirmation.signed(order, verdict, self.plan.setup.target, self.worker.ready)

    def digest(self, order: Order) -> str:
        """Return the digest of the case's tensors; empty where there is no time or no worker left for it."""
        deadline = None if self._deadline is None else self._deadline + GRACE_SECONDS
        with contextlib.suppress(FuzzAttnError):
            return self.worker.judge(Order(order.case, digest=True), deadline=deadline).digest
        return ""


def _saved_with_binding(plan: Plan) -> tuple[Path, Binding] | None:
    """Return the first saved counterexample of the plan's target that contains a binding, and that."""
    for path in sorted(plan.fixtures.rglob("*.json")):
        with contextlib.suppress(CounterexampleError):
            found = counterexamples.load(path)
            if found.target == plan.setup.target and found.binding is not None:
                return path, found.binding
    return None


def launch_limit(max_time: float | None) -> float:
    """Return after how many seconds a launch counts as a hang; a campaign of a minute must have time to see one."""
    return LAUNCH_SECONDS if max_time is None else min(LAUNCH_SECONDS, max(HANG_SHARE * max_time, SHORTEST_HANG))
