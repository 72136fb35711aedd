"""A campaign finds a target's defect, shrinks and saves it, and keeps to its budget in every case."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.engine import campaign as campaign_module
from fuzz_attn.engine import isolated_worker
from fuzz_attn.engine.campaign import GRACE_SECONDS, launch_limit
from fuzz_attn.engine.failures import life, reduction
from fuzz_attn.engine.isolated_worker import IsolatedWorker, Wait
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.orders import Answer, Order, Ready, Setup
from fuzz_attn.engine.replay import replay
from fuzz_attn.engine.run_plan import share_of
from fuzz_attn.errors import FuzzAttnError, OutOfTimeError
from fuzz_attn.mutation.batch_runner import CaseStream
from fuzz_attn.operations.operation import derived_seed
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.relations import RELATIONS

Run = Callable[..., Results]
SpecOf = Callable[[str], str]

ENOUGH_CASES = 60
ENOUGH_FOR_A_RELATION = 400
"""One case in 65 is asked for a certain relation."""
IN_PROCESS: dict[str, Any] = {"backend": "interpreter", "in_process": True}
"""How to replay on a target that does this process no harm: a worker process takes seconds to start."""

WRONG = {
    "window_one_too_long": "oracle",
    "last_row_unwritten": "oracle",
    "poison_leaks": "oracle",
    "killed": "oracle",
    "writes_an_input": "inputs_unchanged",
    "writes_between_rows": "nothing_else_written",
    "nondeterministic": "determinism",
    "depends_on_poison": "poison_independence",
}
"""Each target with the property that it breaks. More targets for each property are in test_properties.py."""
REPLAYED = ("window_one_too_long", "killed", "depends_on_poison")
"""Those of which a worker plays the saved file too: by the oracle, a crash and a relation."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "nondeterministic" else name for name in WRONG]
)
def test_a_wrong_target_is_found_shrunk_and_saved(name: str, campaign: Run, spec: SpecOf) -> None:
    cases = ENOUGH_FOR_A_RELATION if WRONG[name] == "determinism" else ENOUGH_CASES
    outcome = campaign(name, max_cases=cases, until_failure=True)
    assert outcome.failure is not None, f"not found in {outcome.statistics.cases} cases"
    assert outcome.path is not None
    case = outcome.failure.case
    assert outcome.failure.verdict.property_name == WRONG[name]
    assert len(case.sequences) <= 2
    assert case.total_keys <= 64
    assert counterexamples.load(outcome.path) == outcome.failure
    assert outcome.failure.digest
    assert outcome.statistics.counterexamples == (str(outcome.path),)
    if name in REPLAYED:
        (replayed,) = replay((outcome.path,))
        assert (replayed.status, replayed.drifted) == ("FAILED", False)
        assert replayed.verdict == replayed.found.verdict or replayed.verdict.kind == "crash"
    (replayed,) = replay((outcome.path,), target=spec("unified_attention"), **IN_PROCESS)
    assert (replayed.status, replayed.drifted) == ("FIXED", False)


def test_all_that_a_wrong_target_shows_is_one_failure(campaign: Run) -> None:
    outcome = campaign("window_one_too_long", max_cases=ENOUGH_CASES)
    assert outcome.statistics.cases == ENOUGH_CASES
    assert outcome.statistics.counterexamples == (str(outcome.path),)


def test_a_correct_target_passes(campaign: Run) -> None:
    outcome = campaign("unified_attention", max_cases=100)
    assert outcome.failure is None, outcome.failure
    assert outcome.path is None
    statistics = outcome.statistics
    assert (statistics.cases, statistics.deaths, statistics.unfinished) == (100, 0, 0)
    assert {"window", "softcap", "alibi", "qq_bias", "sinks", "fp8_kv", "fp8_out"} <= set(statistics.features)
    assert {"bfloat16", "float16", "float32", "fp8 output"} == set(statistics.ratios)
    assert all(0.0 < ratio <= 1.0 for ratio in statistics.ratios.values())
    assert set(statistics.relations) <= set(RELATIONS)
    assert 20 < sum(statistics.relations.values()) < 60, "about two cases of five"
    assert len(statistics.relations) >= 4
    assert sum(statistics.compile_keys.values()) == 100


def test_a_target_gets_only_features_of_its_signature(campaign: Run) -> None:
    outcome = campaign("without_sinks", max_cases=60)
    assert outcome.failure is None, outcome.failure
    assert not {"sinks", "qq_bias", "fp8_kv", "fp8_out"} & set(outcome.statistics.features)
    assert {"window", "softcap", "alibi"} <= set(outcome.statistics.features)


@pytest.mark.slow
def test_torch_defaults_that_a_target_sets_are_isolated(campaign: Run) -> None:
    outcome = campaign("leaves_defaults", max_cases=10)
    assert outcome.failure is None, outcome.failure


class FakeWorker(IsolatedWorker):
    """A worker without a process, whose verdicts a function returns."""

    def __init__(self, ready: Ready, verdict_on: Callable[[Order], Verdict]) -> None:
        super().__init__(Setup(ready.target))
        self.ready = ready
        self.verdict_on = verdict_on
        self.orders: list[Order] = []

    def __enter__(self) -> Self:
        return self

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        if order.digest:
            return Answer(digest="0" * 16)
        self.orders.append(order)
        return Answer(self.verdict_on(order))


@pytest.fixture(scope="module")
def ready(spec: SpecOf) -> Ready:
    with IsolatedWorker(Setup(spec("unified_attention"))) as worker:
        # The verdicts of these tests are of single cases with usual arguments.
        return msgspec.structs.replace(worker.ready, calls=False, contracts=False)


@pytest.fixture
def fake(campaign: Run, ready: Ready) -> Callable[..., tuple[Results, list[Order]]]:
    """Return a function that runs a campaign with the verdicts of a function; it returns the orders too."""

    def run(verdict_on: Callable[[Order], Verdict], **changes: Any) -> tuple[Results, list[Order]]:
        worker = FakeWorker(ready, verdict_on)
        return campaign("unified_attention", worker=worker, **changes), worker.orders

    return run


Fake = Callable[..., tuple[Results, list[Order]]]


def healthy(order: Order) -> Verdict:
    return Verdict("oracle", ratio=0.5)


def too_long(order: Order) -> Verdict:
    return Verdict("oracle", "mismatch", "wrong", ratio=7.0) if order.case.max_seq_len > 20 else Verdict("oracle")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("max_cases", [1, 7, 1000, 1037])
def test_the_number_of_cases_is_exact(max_cases: int, fake: Fake) -> None:
    outcome, orders = fake(healthy, max_cases=max_cases)
    assert outcome.statistics.cases == len(orders) == max_cases


@pytest.mark.parametrize(("max_cases", "shards"), [(10, 3), (2, 4), (1000, 7), (5, 1)])
def test_the_cases_of_all_shards_add_up(max_cases: int, shards: int) -> None:
    shares = [share_of(max_cases, shard, shards) for shard in range(shards)]
    assert sum(reduction or 0 for reduction in shares) == max_cases
    assert share_of(None, 0, shards) is None


def test_the_same_seed_draws_the_same_cases(fake: Fake) -> None:
    one, again, other, shard = (
        fake(healthy, max_cases=120, **changes)[1] for changes in ({}, {}, {"seed": 2}, {"shard": 1, "shards": 2})
    )
    assert one == again
    assert one != other
    assert one != shard
    assert len(set(one)) > 100


def test_a_campaign_draws_the_cases_of_its_case_stream(fake: Fake, ready: Ready) -> None:
    _, orders = fake(healthy, max_cases=480, seed=2)
    stream = CaseStream(ready.domain, 2)
    drawn = [stream[number] for number in range(480)]
    assert [(order.case, order.relation) for order in orders] == [(each.case, each.relation) for each in drawn]
    compiling = {name for name, relation in RELATIONS.items() if relation.compiles}
    assert not compiling.intersection(each.relation for each in drawn[:240])
    assert compiling.intersection(each.relation for each in drawn[240:])


def test_the_same_seed_ends_at_the_same_counterexample(fake: Fake, tmp_path: Path) -> None:
    (one, orders), (again, same_orders) = (
        fake(too_long, max_cases=500, fixtures=tmp_path / folder) for folder in ("one", "again")
    )
    assert one.failure == again.failure
    assert orders == same_orders


def test_seeds_of_shards_and_rounds_differ() -> None:
    seeds = {derived_seed(seed, shard, number) for seed in range(4) for shard in range(8) for number in range(8)}
    assert len(seeds) == 4 * 8 * 8


def test_a_failure_is_shrunk_to_the_smallest_case_that_fails(fake: Fake) -> None:
    outcome, _ = fake(too_long, max_cases=500, seed=2)  # one seed in four or so ends in a local minimum
    assert outcome.failure is not None
    assert [sequence.seq_len for sequence in outcome.failure.case.sequences] == [21]
    assert outcome.failure.relation is None, "the relation did not fail"


def test_a_harness_that_fails_on_a_case_ends_the_campaign(fake: Fake, tmp_path: Path) -> None:
    judged: list[Order] = []

    def broken(order: Order) -> Verdict:
        judged.append(order)
        if order.case.max_seq_len > 20:
            raise FuzzAttnError("fuzz_attn itself failed")
        return Verdict("oracle")

    with pytest.raises(FuzzAttnError, match="itself failed"):
        fake(broken, max_cases=30)
    assert sum(order.case.max_seq_len > 20 for order in judged) == 1, "a failure of the harness must not be shrunk"
    assert counterexamples.load(tmp_path / "run" / "journal-0.json").case == judged[-1].case


class Clock:
    """A clock that only launches move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock of the campaigns of a test."""
    clock = Clock()
    for module in (campaign_module, life, reduction):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    return clock


def test_the_time_limit_holds_while_shrinking(fake: Fake, clock: Clock) -> None:
    def slow_and_wrong(order: Order) -> Verdict:
        clock.now += 0.2
        return too_long(order)

    outcome, _ = fake(slow_and_wrong, max_time=7.0)
    assert outcome.failure is not None
    assert outcome.path is not None
    assert outcome.path.exists()
    assert outcome.statistics.shrinking > 0
    # The launch that was going on may end; the grace is for a failure that shows late, to be confirmed.
    assert 7.0 <= outcome.statistics.seconds <= 7.0 + 0.2


def test_the_search_leaves_time_to_follow_what_a_last_case_shows(fake: Fake, clock: Clock) -> None:
    def slow(verdict_on: Callable[[Order], Verdict]) -> Callable[[Order], Verdict]:
        def verdict(order: Order) -> Verdict:
            clock.now += 0.2
            return verdict_on(order)

        return verdict

    found, _ = fake(slow(too_long), max_time=100.0)
    assert found.failure is not None
    assert found.failure.shrunk
    assert 90.0 <= found.statistics.seconds < 99.0
    clock.now = 0.0
    passing, _ = fake(slow(healthy), max_time=100.0)
    assert passing.statistics.seconds >= 100.0


class HangingWorker(FakeWorker):
    """A worker on which long cases hang until the deadline of the campaign."""

    def __init__(self, ready: Ready, clock: Clock) -> None:
        super().__init__(ready, healthy)
        self.clock = clock

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        assert deadline is not None
        self.clock.now += 0.1
        if order.case.max_seq_len > 8:
            self.clock.now = deadline
            raise OutOfTimeError
        return super().judge(order)


def test_the_time_limit_holds_on_a_target_that_hangs(campaign: Run, ready: Ready, clock: Clock, tmp_path: Path) -> None:
    outcome = campaign("unified_attention", worker=HangingWorker(ready, clock), max_time=30.0)
    assert outcome.failure is None
    assert outcome.statistics.unfinished == 1
    assert 1.0 < outcome.statistics.unfinished_seconds <= outcome.statistics.seconds == 30.0
    (journal,) = (tmp_path / "run").glob("journal-*.json")
    assert counterexamples.load(journal).case.max_seq_len > 8, "a case without a verdict stays"


class HangingWithSinks(FakeWorker):
    """A worker on which a launch with sinks does not end; the others take a tenth of a second."""

    def __init__(self, ready: Ready, clock: Clock, launch_seconds: float) -> None:
        super().__init__(ready, healthy)
        self.clock, self.launch_seconds = clock, launch_seconds

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        if order.digest or order.case.sinks is None:
            self.clock.now += 0.1
            return super().judge(order, deadline=deadline)
        seconds = {"short": 3.0, "full": self.launch_seconds, "short, then full": 3.0 + self.launch_seconds}[wait]
        if deadline is not None and self.clock.now + seconds > deadline:
            self.clock.now = deadline
            raise OutOfTimeError
        self.clock.now += seconds
        return Answer(Verdict("oracle", "timeout", f"after {seconds:.0f} s"), fresh=wait == "short, then full")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("max_time", [90.0, 120.0, 300.0])
def test_a_hang_is_shrunk_and_checked_in_time(max_time: float, campaign: Run, ready: Ready, clock: Clock) -> None:
    worker = HangingWithSinks(ready, clock, launch_limit(max_time))
    outcome = campaign("unified_attention", worker=worker, max_time=max_time)
    assert len(outcome.statistics.counterexamples) == 1
    assert outcome.failure is not None
    assert outcome.failure.trigger == ("sinks",)
    assert outcome.failure.verdict.message == f"after {launch_limit(max_time):.0f} s"
    assert outcome.statistics.cases > 50, "the search goes on"
    assert outcome.statistics.seconds <= max_time + GRACE_SECONDS


def test_a_hang_is_found_once_and_shrunk(campaign: Run, spec: SpecOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated_worker, "LEAST_PATIENCE", 0.5)
    worker = IsolatedWorker(Setup(spec("hangs_with_sinks")), launch_seconds=4.0)
    outcome = campaign("hangs_with_sinks", worker=worker, max_cases=40, until_failure=True)
    assert len(outcome.statistics.counterexamples) == 1
    assert outcome.failure is not None
    assert outcome.failure.trigger == ("sinks",)
    assert outcome.failure.confirmation == "confirmed"
    assert outcome.failure.verdict.message == "the launch did not end within 4 s"
    assert outcome.failure.case.total_keys == 1


def test_a_finished_campaign_deletes_its_journal(fake: Fake, tmp_path: Path) -> None:
    fake(healthy, max_cases=3)
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("max_time", "limit"), [(None, 120.0), (60.0, 15.0), (90.0, 22.5), (3600.0, 120.0), (5.0, 5.0)]
)
def test_the_limit_of_a_launch_depends_on_the_time_limit(max_time: float | None, limit: float) -> None:
    assert launch_limit(max_time) == limit


def test_an_interrupt_saves_the_smallest_failure_so_far(fake: Fake, tmp_path: Path) -> None:
    failed: list[Order] = []

    def interrupted(order: Order) -> Verdict:
        failed.extend([order] * (not too_long(order).passed))
        if len(failed) > 2:
            raise KeyboardInterrupt
        return too_long(order)

    with pytest.raises(KeyboardInterrupt):
        fake(interrupted, max_cases=500)
    (path,) = (tmp_path / "counterexamples").rglob("*.json")
    assert counterexamples.load(path).case.max_seq_len > 20


A_HANG = 1800.0
"""Seconds after which a wait counts as a hang, on the slowest machine."""

KILLING = """
import sys
from pathlib import Path
from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.orders import Setup

Campaign(Plan(Setup(sys.argv[1]), 0, 1, 1, None, None, Path(sys.argv[2]), Path(sys.argv[3]))).run()
"""


def test_a_killed_campaign_leaves_its_case_in_the_journal(spec: SpecOf, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLING, spec("hangs"), tmp_path / "run", tmp_path / "saved"])
    journal = tmp_path / "run" / "journal-0.json"
    limit = time.monotonic() + A_HANG
    while not (journal.exists() and _case_in(journal).max_seq_len > 8):
        assert time.monotonic() < limit
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = counterexamples.load(journal)
    assert left.verdict.message == "the campaign itself ended while this case was running"
    assert left.target == spec("hangs")
    (replayed,) = replay((journal,), target=spec("unified_attention"), **IN_PROCESS)
    assert replayed.status == "FIXED"


def _case_in(journal: Path) -> AttentionCase:
    try:
        case: AttentionCase = counterexamples.load(journal).case
        return case
    except Exception:  # noqa: BLE001 - it is being written
        return AttentionCase(sequences=())
