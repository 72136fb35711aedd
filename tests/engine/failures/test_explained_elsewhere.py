"""What one backend finds, another one explains: made-up workers stand for a GPU and for the simulator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import Sequence
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.events import CaseJudged, Event, FailureChanged, FailureSeenAgain, Note
from fuzz_attn.engine.failures import reduction, triage
from fuzz_attn.engine.failures.triage import KnownFailure
from fuzz_attn.engine.isolated_worker import IsolatedWorker, Wait
from fuzz_attn.engine.listeners.results import FoundFailure, Results, RunReport
from fuzz_attn.engine.orders import Answer, Order, Ready, Setup
from fuzz_attn.errors import OutOfTimeError, TargetError
from fuzz_attn.oracle.verdict import Refusal, Verdict
from fuzz_attn.report.failure import certainty
from fuzz_attn.report.outcome import status_of

Bug = Callable[[AttentionCase], Verdict | None]
Shows = Callable[[AttentionCase], object]
DOMAIN = Domain(paths=("auto", "2d", "3d"), tile_hint=True)
GPU = Ready("fake", "fake", "unified", "cuda", domain=DOMAIN)
"""It draws as on a CPU, where a round has many compile keys."""
ON_GPU = Ready("fake", "fake", "unified", "cuda", "cuda", domain=DOMAIN, gpu=(9, 0, 132))
SIMULATOR = Ready("fake", "fake", "unified", "simulator", domain=DOMAIN, sanitizers=True)
WRONG = Verdict("oracle", "mismatch", "wrong", ratio=7.0)
CRASH = Verdict("oracle", "crash", "broke the device for its process")


def outside(line: int) -> Verdict:
    return Verdict("sanitizers", "out_of_bounds", "loads", site=f"/kernel.py:{line}")


def shows(verdict: Verdict, when: Shows) -> Bug:
    return lambda case: verdict if when(case) else None


def windowed(case: AttentionCase) -> bool:
    return bool(case.window and case.max_seq_len > case.window and case.num_tokens)


def long(case: AttentionCase) -> bool:
    return case.num_tokens > 1


def sinks(case: AttentionCase) -> bool:
    return case.sinks is not None


class FakeWorker(IsolatedWorker):
    """A worker without a process, on which a target has some bugs."""

    def __init__(self, ready: Ready, *bugs: Bug) -> None:
        super().__init__(Setup("fake", backend=ready.backend))
        self.ready = ready
        self.bugs = bugs
        self.orders: list[Order] = []

    def __enter__(self) -> Self:
        return self

    def renew(self) -> None:
        pass

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        if order.digest:
            return Answer(digest="0123456789abcdef")
        self.orders.append(order)
        return self.answer(order)

    def answer(self, order: Order) -> Answer:
        failed = [verdict for bug in self.bugs if (verdict := bug(order.case))]
        return Answer(failed[0], tuple(failed[1:])) if failed else Answer(Verdict("oracle", ratio=0.5))


class Run:
    """The events of a campaign whose worker finds failures and whose other worker explains them."""

    def __init__(
        self, folder: Path, gpu: FakeWorker, simulator: FakeWorker, cases: int = 150, seconds: float | None = None
    ) -> None:
        self.events: list[Event] = []
        self.folder = folder / "saved" / "fake"
        plan = Plan(Setup("fake"), 0, 1, 1, seconds, cases, folder / "run", folder / "saved")
        self.campaign = Campaign(plan, self.events.append, gpu, explaining=simulator)
        self.campaign.run()
        assert self.report.lost == "", "every failing case is in a row"
        assert {Path(row.path) for row in self.rows} == set(self.folder.glob("*.json"))
        for row in self.rows:
            assert counterexamples.load(Path(row.path)) == row.counterexample

    @property
    def report(self) -> RunReport:
        results = Results()
        for event in self.events:
            results(event)
        return results.report()

    @property
    def rows(self) -> tuple[FoundFailure, ...]:
        return self.report.failures

    @property
    def row(self) -> FoundFailure:
        (row,) = self.rows
        return row

    @property
    def found(self) -> Counterexample:
        return self.row.counterexample

    def orders(self, backend: str) -> list[Order]:
        """Return the orders of confirming and shrinking on a backend."""
        judged = [each for each in self.events if isinstance(each, CaseJudged) and each.phase in ("confirm", "shrink")]
        return [each.order for each in judged if each.backend == backend]


def elsewhere(found: Counterexample) -> tuple[str, str]:
    assert found.elsewhere is not None
    return found.elsewhere.outcome, found.elsewhere.shrunk_case


def test_a_bug_of_logic_is_shrunk_in_the_simulator_and_checked_once_on_the_gpu(tmp_path: Path) -> None:
    bug = shows(WRONG, windowed)
    run = Run(tmp_path, FakeWorker(GPU, bug), FakeWorker(SIMULATOR, bug))
    found = run.found
    assert (found.environment.backend, found.trigger) == ("cuda", ("sliding window", "more than 1 keys"))
    assert (found.confirmation, found.shrunk, *elsewhere(found)) == ("confirmed", True, "fails", "fails")
    assert run.orders("") == [Order(found.case)], "the GPU launches the shrunk case only"
    assert len(run.orders("simulator")) > 10
    assert status_of(run.row) == "open"
    assert "found on cuda, and shrunk in the simulator" in certainty(found)
    assert run.row.cases == run.report.statistics.failing > 20


def test_two_failures_of_a_gpu_that_share_a_line_in_the_simulator_are_one(tmp_path: Path) -> None:
    """A wrong output with a window and a crash with sinks are one access outside."""
    gpu = FakeWorker(GPU, shows(WRONG, windowed), shows(CRASH, lambda case: sinks(case) and not windowed(case)))
    simulator = FakeWorker(SIMULATOR, shows(outside(10), lambda case: windowed(case) or sinks(case)))
    run = Run(tmp_path, gpu, simulator)
    found = run.found
    assert found.verdict == outside(10)
    assert found.elsewhere is not None
    assert found.elsewhere.found_as == ("crash", "output")
    assert len(run.orders("simulator")) < 200, "cases with its trigger are not replayed each time"


def test_two_wrong_outputs_with_two_lines_are_two_failures(tmp_path: Path) -> None:
    gpu = FakeWorker(GPU, shows(WRONG, windowed), shows(WRONG, sinks))
    run = Run(tmp_path, gpu, FakeWorker(SIMULATOR, shows(outside(10), windowed), shows(outside(20), sinks)))
    assert {row.counterexample.verdict.site for row in run.rows} == {"/kernel.py:10", "/kernel.py:20"}
    assert {elsewhere(row.counterexample) for row in run.rows} == {("fails", "fails")}


def test_a_failure_of_the_gpu_only_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path, FakeWorker(GPU, shows(WRONG, windowed)), FakeWorker(SIMULATOR))
    found = run.found
    assert (found.confirmation, found.shrunk, *elsewhere(found)) == ("confirmed", True, "passes", "unknown")
    assert found.trigger == ("sliding window", "more than 1 keys")
    assert status_of(run.row) == "open, GPU only"
    assert "GPU only: it passes in the simulator" in certainty(found)
    assert run.row.cases > 20
    assert len(set(run.orders("simulator"))) == len(run.orders("simulator")) <= triage.MOST_REPLAYED


def test_a_bug_of_logic_is_not_one_with_a_failure_of_the_gpu_only(tmp_path: Path) -> None:
    gpu = FakeWorker(GPU, shows(WRONG, windowed), shows(WRONG, sinks))
    run = Run(tmp_path, gpu, FakeWorker(SIMULATOR, shows(WRONG, sinks)))
    outcomes = {row.counterexample.trigger[0]: elsewhere(row.counterexample)[0] for row in run.rows}
    assert outcomes == {"sliding window": "passes", "sinks": "fails"}


def both(case: AttentionCase) -> bool:
    return windowed(case) and sinks(case)


@pytest.mark.parametrize("status", ["open", "known"])
def test_a_bug_of_logic_does_not_hide_behind_a_saved_failure_of_the_gpu_only(
    status: Literal["open", "known"], tmp_path: Path
) -> None:
    """Both make the output wrong, and the bug of logic needs what the known failure needs, and sinks."""
    gpu = FakeWorker(GPU, shows(WRONG, windowed))
    Run(tmp_path, gpu, FakeWorker(SIMULATOR))
    (path,) = (tmp_path / "saved" / "fake").glob("*.json")
    found = counterexamples.load(path)
    counterexamples.overwrite(msgspec.structs.replace(found, status=status, because="waits", reference="#7"), path)
    run = Run(tmp_path, gpu, FakeWorker(SIMULATOR, shows(WRONG, both)))
    (new,) = (row.counterexample for row in run.rows if not row.saved)
    assert elsewhere(new) == ("fails", "fails")
    assert {"sliding window", "sinks"} <= set(new.trigger)
    assert run.report.exit_status == 1


class Compiling(FakeWorker):
    """A worker on which a case with other features, heads or dtypes needs another kernel."""

    def __init__(self, *bugs: Bug) -> None:
        super().__init__(ON_GPU, *bugs)
        self.kernels: set[int] = set()
        self.compiled = 0

    def answer(self, order: Order) -> Answer:
        key = order.case.compile_key.number
        if key in self.kernels:
            return super().answer(order)
        if order.compiled:
            return Answer(missing=True)
        self.kernels.add(key)
        self.compiled += 1
        answer = super().answer(order)
        return Answer(answer.verdict, answer.others, compiled=1)


def test_a_failure_of_the_gpu_only_is_shrunk_with_few_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shrunk(folder: str, most: int) -> tuple[int, list[Counterexample]]:
        monkeypatch.setattr(reduction, "MOST_KERNELS", most)
        gpu = Compiling(shows(WRONG, windowed))
        run = Run(tmp_path / folder, gpu, FakeWorker(SIMULATOR), cases=12)
        searched = {
            each.order.case.compile_key.number
            for each in run.events
            if isinstance(each, CaseJudged) and each.phase == "search"
        }
        return len(gpu.kernels - searched), [row.counterexample for row in run.rows]

    kernels, (found,) = shrunk("many", 1000)
    assert found.shrunk
    assert kernels > 3
    kernels, rows = shrunk("none", 0)
    assert kernels == 0
    assert 0 < len(rows) <= 3, "not shrunk fully, one bug may have several triggers"
    for found in rows:
        assert (found.shrunk, windowed(found.case)) == (False, True)
        assert [sequence.query_len for sequence in found.case.sequences] == [1], "it is shrunk within its key"
    kernels, rows = shrunk("two", 2)
    assert len(rows) <= 3
    assert 0 < kernels <= 2 * len(rows)


class Unsupported(FakeWorker):
    """A simulator that cannot run what has a window."""

    def answer(self, order: Order) -> Answer:
        return Answer(unsupported="tt.odd at /kernel.py:7") if order.case.window else super().answer(order)


def test_what_the_simulator_cannot_run_is_shrunk_on_the_gpu_and_says_so(tmp_path: Path) -> None:
    bug = shows(WRONG, windowed)
    run = Run(tmp_path, FakeWorker(GPU, bug), Unsupported(SIMULATOR, bug))
    found = run.found
    assert (found.confirmation, found.shrunk, *elsewhere(found)) == ("confirmed", True, "unknown", "unknown")
    assert status_of(run.row) == "open, not judged in the simulator"
    assert certainty(found).endswith("not judged in the simulator: tt.odd at /kernel.py:7")


class Hanging(FakeWorker):
    """A simulator that does not answer in time."""

    def answer(self, order: Order) -> Answer:
        return Answer(Verdict("oracle", "timeout", "the launch did not end within 20 s"))


class Broken(FakeWorker):
    """A simulator whose target does not load."""

    def answer(self, order: Order) -> Answer:
        raise TargetError("target='fake' needs a GPU")


class Refusing(FakeWorker):
    """A simulator in which the target refuses everything."""

    def answer(self, order: Order) -> Answer:
        return Answer(refusal=Refusal("host", "ValueError", "no"))


class Killed(FakeWorker):
    """A simulator whose process something outside ends."""

    def answer(self, order: Order) -> Answer:
        return Answer(Verdict("oracle", "crash", "died of SIGKILL"), killed=True)


class TooLarge(FakeWorker):
    """A simulator whose process takes too much memory."""

    def answer(self, order: Order) -> Answer:
        return Answer(Verdict("oracle", "crash", "exceeded its memory limit of 8 GiB"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("verdict", [WRONG, CRASH, Verdict("oracle", "timeout", "the launch did not end within 30 s")])
@pytest.mark.parametrize(
    ("simulator", "reason"),
    [
        (Hanging, "the launch takes more than 20 s there"),
        (Broken, "target='fake' needs a GPU"),
        (Refusing, "the target or the compiler refuses the case there"),
        (Killed, "its process was ended from outside there"),
        (TooLarge, "the launch takes too much memory there"),
    ],
)
def test_a_simulator_that_cannot_judge_loses_no_failure(
    simulator: type[FakeWorker], reason: str, verdict: Verdict, tmp_path: Path
) -> None:
    run = Run(tmp_path, FakeWorker(GPU, shows(verdict, windowed)), simulator(SIMULATOR), cases=60)
    found = run.found
    assert (found.confirmation, *elsewhere(found)) == ("confirmed", "unknown", "unknown")
    assert found.elsewhere is not None
    assert found.elsewhere.reason == reason
    assert run.report.errors == ()


class OnlyLong(FakeWorker):
    """A GPU on which a bug of logic shows in long cases only."""

    def answer(self, order: Order) -> Answer:
        return super().answer(order) if order.case.max_seq_len > 6 else Answer(Verdict("oracle", ratio=0.5))


def test_where_the_shrunk_case_passes_on_the_gpu_a_larger_one_is_kept(tmp_path: Path) -> None:
    bug = shows(WRONG, windowed)
    run = Run(tmp_path, OnlyLong(GPU, bug), FakeWorker(SIMULATOR, bug))
    found = run.found
    assert elsewhere(found) == ("fails", "larger")
    assert found.case.max_seq_len > 6
    assert len(found.case.sequences) == 1, "it is as small as the first step that passes allows"
    assert found.trigger == ("sliding window", "more than 1 keys")
    assert len(run.orders("")) <= 2 + 6
    assert "Smaller cases that fail there pass on cuda" in certainty(found)


class Once(FakeWorker):
    """A GPU on which a bug shows once."""

    seen = False

    def answer(self, order: Order) -> Answer:
        answer = super().answer(order)
        if answer.verdict.passed or self.seen:
            return Answer(Verdict("oracle", ratio=0.5))
        self.seen = True
        return answer


def test_what_does_not_fail_again_on_the_gpu_keeps_the_case_of_the_simulator(tmp_path: Path) -> None:
    bug = shows(WRONG, windowed)
    run = Run(tmp_path, Once(GPU, bug), FakeWorker(SIMULATOR, bug))
    assert elsewhere(run.found) == ("fails", "passes")
    assert run.found.shrunk
    assert run.found.case.max_seq_len == 2
    assert "This case passes on cuda" in certainty(run.found)


def test_what_the_simulator_shows_beside_the_failure_is_a_failure_of_its_own(tmp_path: Path) -> None:
    bug = shows(WRONG, windowed)
    run = Run(tmp_path, FakeWorker(GPU, bug), FakeWorker(SIMULATOR, bug, shows(outside(30), long)), cases=400)
    found = {row.counterexample.verdict.kind: row.counterexample for row in run.rows}
    assert set(found) == {"mismatch", "out_of_bounds"}
    assert found["mismatch"].trigger == ("sliding window", "more than 1 keys")
    assert elsewhere(found["mismatch"]) == ("fails", "fails")
    assert found["out_of_bounds"].environment.backend == "simulator"
    assert (found["out_of_bounds"].elsewhere, found["out_of_bounds"].shrunk) == (None, True)


def test_a_finding_that_makes_the_output_wrong_is_the_cause_of_it(tmp_path: Path) -> None:
    gpu = FakeWorker(GPU, shows(WRONG, windowed))
    simulator = FakeWorker(SIMULATOR, shows(outside(30), windowed), shows(WRONG, windowed))
    found = Run(tmp_path, gpu, simulator).found
    assert (found.verdict, found.also, found.environment.backend) == (outside(30), ("output",), "cuda")
    assert elsewhere(found) == ("fails", "fails")
    assert found.digest


def test_another_failure_in_the_simulator_is_not_the_same(tmp_path: Path) -> None:
    """The GPU computes something wrong, and the simulator raises: two failures."""
    raised = Verdict("oracle", "exception", "the target raised ValueError: no", site="/kernel.py:70")
    run = Run(tmp_path, FakeWorker(GPU, shows(WRONG, windowed)), FakeWorker(SIMULATOR, shows(raised, windowed)))
    found = {row.counterexample.verdict.kind: row.counterexample for row in run.rows}
    assert elsewhere(found["mismatch"])[0] == "passes"
    assert (found["exception"].environment.backend, found["exception"].elsewhere) == ("simulator", None)


class Late(FakeWorker):
    """A simulator in which the time is up after some orders."""

    def __init__(self, after: int, *bugs: Bug) -> None:
        super().__init__(SIMULATOR, *bugs)
        self.after = after

    def answer(self, order: Order) -> Answer:
        if len(self.orders) > self.after:
            raise OutOfTimeError("the time was up")
        return super().answer(order)


@pytest.mark.parametrize("after", [0, 1, 2, 5, 10, 20])
def test_if_the_time_is_up_the_smallest_failure_so_far_is_kept(after: int, tmp_path: Path) -> None:
    bug = shows(WRONG, windowed)
    run = Run(tmp_path, FakeWorker(GPU, bug), Late(after, bug))
    found = run.found
    expected = ("confirmed", "fails", "unknown") if after else ("unconfirmed", "unknown", "unknown")
    assert (found.confirmation, *elsewhere(found)) == expected
    assert windowed(found.case)
    assert run.report.exit_status == 1


def test_a_saved_failure_is_known_on_the_gpu_by_the_classes_that_it_had_there(tmp_path: Path) -> None:
    gpu, simulator = FakeWorker(GPU, shows(WRONG, windowed)), FakeWorker(SIMULATOR, shows(outside(10), windowed))
    Run(tmp_path, gpu, simulator)
    again = Run(tmp_path, gpu, simulator)
    assert again.row.saved
    assert again.found.verdict == outside(10)
    assert not again.orders("simulator")
    assert sum(isinstance(event, FailureSeenAgain) for event in again.events) > 5


def test_a_saved_failure_of_the_gpu_only_is_not_taken_for_mended_elsewhere(tmp_path: Path) -> None:
    Run(tmp_path, FakeWorker(GPU, shows(WRONG, windowed)), FakeWorker(SIMULATOR))
    events: list[Event] = []
    plan = Plan(Setup("fake"), 0, 1, 1, None, 5, tmp_path / "run", tmp_path / "saved")
    Campaign(plan, events.append, FakeWorker(SIMULATOR)).run()
    (note,) = [event.text for event in events if isinstance(event, Note)]
    assert "passes here, which says nothing: only cuda shows this failure, so that a replay needs a GPU" in note


def test_what_was_only_seen_ends_as_the_bug_that_became_known_meanwhile(tmp_path: Path) -> None:
    found = counterexamples.signed("t", "unified", None, AttentionCase((Sequence(1, 40),)), WRONG)
    known = KnownFailure(1, 0, found, "k", frozenset({"more than 16 keys"}))

    class Interrupted(FakeWorker):
        def answer(self, order: Order) -> Answer:
            if any(tmp_path.rglob("saved/*/*.json")):
                campaign._lives.known.add(known)
                raise KeyboardInterrupt
            return super().answer(order)

    events: list[Event] = []
    plan = Plan(Setup("fake"), 0, 1, 1, None, 300, tmp_path / "run", tmp_path / "saved")
    campaign = Campaign(plan, events.append, Interrupted(SIMULATOR, shows(WRONG, lambda case: case.max_seq_len > 20)))
    with pytest.raises(KeyboardInterrupt):
        campaign.run()
    (ended,) = [event for event in events if isinstance(event, FailureChanged) and event.done]
    assert ended.same_as == "k"
    assert not [*tmp_path.rglob("saved/*/*.json")]
