"""A shard on a GPU plays the rounds that the compile stage has made ready, and asks for no other kernel."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Self

import msgspec
import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.engine import campaign
from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.failures import life, reduction
from fuzz_attn.engine.isolated_worker import IsolatedWorker, Wait
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.listeners.statistics import Statistics
from fuzz_attn.engine.orders import Answer, Order, Ready, Setup
from fuzz_attn.engine.rounds import CASES, ReadyRound, Rounds, StagePlan
from fuzz_attn.operations.attention.drawing import shared_round
from fuzz_attn.operations.attention.refusals import JUDGED_FOR_ONE
from fuzz_attn.oracle.verdict import Refusal, Verdict

DOMAIN = Domain(features=frozenset())
SEED = 3
READY = Ready("t", "t", "unified", "cuda", "cuda", domain=DOMAIN, gpu=(9, 0, 132))


class FakeWorker(IsolatedWorker):
    """A worker without a process."""

    def __init__(self, answer: Callable[[Order], Answer], ready: Ready) -> None:
        super().__init__(Setup("t"))
        self.answer, self.ready = answer, ready
        self.orders: list[Order] = []

    def __enter__(self) -> Self:
        return self

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        self.orders.append(order)
        return self.answer(order)


@pytest.fixture
def played(tmp_path: Path) -> Callable[..., tuple[Statistics, list[Order]]]:
    """Return a function that runs a campaign next to a compile stage and returns its statistics and orders."""

    def run(
        answer: Callable[[Order], Answer] = lambda order: Answer(), max_cases: int = CASES, ready: Ready = READY
    ) -> tuple[Statistics, list[Order]]:
        worker, results = FakeWorker(answer, ready), Results()
        stage = StagePlan(Setup("t"), SEED, str(tmp_path / "rounds"), 1)
        plan = Plan(Setup("t"), 0, 1, 0, None, max_cases, tmp_path / "run", tmp_path / "saved", stage=stage)
        plan.run_folder.mkdir(exist_ok=True)
        Campaign(plan, results, worker).run()
        return results.statistics, worker.orders

    return run


@pytest.fixture
def stage(tmp_path: Path) -> Rounds:
    rounds = Rounds(tmp_path / "rounds")
    rounds.make()
    return rounds


def key(number: int) -> int:
    return int(shared_round(DOMAIN, SEED, number).key.number)


def ready(number: int, *, complete: bool = True) -> ReadyRound:
    return ReadyRound(number, complete)


def test_cases_are_those_of_the_ready_round_and_wait_for_no_compiler(played: Played, stage: Rounds) -> None:
    stage.set_ready(ready(0))
    statistics, orders = played()
    assert statistics.compile_keys == {key(0): CASES}
    assert all(order.compiled for order in orders)


def test_more_cases_are_drawn_until_the_next_round_is_ready(played: Played, stage: Rounds) -> None:
    stage.set_ready(ready(0))

    def answer(order: Order) -> Answer:
        if len(seen) == 2 * CASES:
            stage.set_ready(ready(1))
        seen.append(order)
        return Answer()

    seen: list[Order] = []
    played(answer, max_cases=4 * CASES)
    keys = [order.case.compile_key.number for order in seen]
    assert keys[: 3 * CASES] == [key(0)] * 3 * CASES
    assert keys[3 * CASES :] == [key(1)] * CASES
    assert len({msgspec.json.encode(order) for order in seen}) == len(seen)


def test_a_case_that_needs_another_kernel_is_dropped(played: Played, stage: Rounds) -> None:
    stage.set_ready(ready(0))
    statistics, orders = played(lambda order: Answer(missing=order.case.seed % 4 == 0))
    dropped = sum(order.case.seed % 4 == 0 for order in orders)
    assert dropped
    assert (statistics.not_compiled, statistics.cases) == (dropped, CASES)


def test_cases_may_wait_where_the_stage_does_not_know_the_kernels(played: Played, stage: Rounds) -> None:
    stage.set_ready(ready(0, complete=False))
    _, orders = played()
    assert not any(order.compiled for order in orders)


def test_cases_may_wait_where_most_of_them_would_be_dropped(played: Played, stage: Rounds) -> None:
    stage.set_ready(ready(0))
    statistics, _ = played(lambda order: Answer(missing=order.compiled))
    assert statistics.cases == CASES
    assert CASES < statistics.not_compiled < campaign.FIRST_MISSING


REFUSAL = Refusal("host", "ValueError", "one sequence only", "launcher.py:7")


def one_sequence_only(order: Order) -> Answer:
    refused = [REFUSAL if len(case.sequences) > 1 else None for case in order.probes or (order.case,)]
    return Answer(refusals=tuple(refused)) if order.probes else Answer(refusal=refused[0])


def test_what_host_code_refuses_is_found_out_by_one_shard(played: Played, stage: Rounds) -> None:
    stage.set_ready(ready(0))
    _, first = played(one_sequence_only)
    _, second = played(one_sequence_only)
    assert any(order.probes for order in first)
    assert not any(order.probes for order in second)
    assert sum(len(order.case.sequences) > 1 for order in second) <= CASES // JUDGED_FOR_ONE + 1


def test_while_another_process_finds_out_what_is_refused_cases_are_drawn(played: Played, stage: Rounds) -> None:
    stage.set_ready(ready(0))
    assert stage.claim(REFUSAL.site)
    _, orders = played(one_sequence_only)
    assert not any(order.probes for order in orders)
    assert len(orders) >= CASES
    stage.release(REFUSAL.site)
    _, orders = played(one_sequence_only)
    assert any(order.probes for order in orders)


class Clock:
    """A clock that only launches move."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class HangingWorker(FakeWorker):
    """A worker on which the launch of some cases does not end; another case takes half a second.

    ``hung`` are the seconds that went to such launches since one got the full time, which checks a failure.
    """

    def __init__(self, hangs: Callable[[AttentionCase], bool], ready: Ready, clock: Clock) -> None:
        super().__init__(lambda order: Answer(digest="d" if order.digest else ""), ready)
        self.hangs = hangs
        self.clock = clock
        self.hung = 0.0

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        if order.digest or not self.hangs(order.case):
            self.clock.now += 0.0 if order.digest else 0.5
            return super().judge(order)
        seconds = {"short": 3.0, "full": 30.0, "short, then full": 33.0}[wait]
        self.clock.now += seconds
        self.hung = 0.0 if wait == "full" else self.hung + seconds
        return Answer(Verdict("oracle", "timeout", f"after {seconds:.0f} s"), fresh=wait == "short, then full")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("hangs", "trigger"),
    [
        (lambda case: case.sinks is not None, ("sinks",)),
        (
            lambda case: case.sinks is not None and case.poison.values != "zero",
            ("sinks", "large numbers in dead values"),
        ),
    ],
    ids=["a feature", "a feature and poison"],
)
def test_a_round_whose_cases_all_hang_takes_little_time(
    hangs: Callable[[AttentionCase], bool],
    trigger: tuple[str, ...],
    tmp_path: Path,
    stage: Rounds,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    domain, clock, results = Domain(features=frozenset({"sinks"})), Clock(), Results()
    for module in (campaign, life, reduction):
        monkeypatch.setattr(module, "time", clock)
    keys = ([shared_round(domain, seed, each).key for each in (0, 1)] for seed in count())
    seed = next(seed for seed, pair in enumerate(keys) if [key.has("sinks") for key in pair] == [False, True])
    stage.set_ready(ready(0))
    stage.set_ready(ready(1))
    worker = HangingWorker(hangs, msgspec.structs.replace(READY, domain=domain), clock)
    rounds = StagePlan(Setup("t"), seed, str(tmp_path / "rounds"), 1)
    plan = Plan(Setup("t"), 0, 1, 0, 600.0, None, tmp_path / "run", tmp_path / "saved", stage=rounds)
    plan.run_folder.mkdir()
    Campaign(plan, results, worker).run()
    (failure,) = results.report().failures
    assert failure.counterexample.trigger == trigger
    assert results.statistics.cases > 800, "most of the time goes to cases that end"
    assert worker.hung < 33.0, "5 % of the time, and the last one"


@pytest.mark.parametrize("ended", [True, False], ids=["the stage has ended", "no GPU"])
def test_without_a_stage_a_shard_draws_its_own_rounds(ended: bool, played: Played, stage: Rounds) -> None:
    stage.set_ended()
    ready = READY if ended else msgspec.structs.replace(READY, device="cpu", gpu=None)
    statistics, orders = played(ready=ready)
    assert len(statistics.compile_keys) > 1
    assert not any(order.compiled for order in orders)


Played = Callable[..., tuple[Statistics, list[Order]]]
