"""All distinct failures of a run: found, told apart, shrunk, confirmed and classified, with made-up verdicts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.aspects import with_feature
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import Sequence
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.events import (
    CaseJudged,
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    News,
    Note,
    SavedPassed,
    no_news,
)
from fuzz_attn.engine.failures import life, records, reduction
from fuzz_attn.engine.failures.life import MOST_FAILURES
from fuzz_attn.engine.isolated_worker import IsolatedWorker, Wait
from fuzz_attn.engine.listeners.results import Results, RunReport
from fuzz_attn.engine.orders import Answer, Order, Ready, Setup
from fuzz_attn.errors import CaseError
from fuzz_attn.oracle.verdict import Refusal, Verdict
from fuzz_attn.properties.relations import RELATIONS, second_case

Bug = Callable[[AttentionCase], Verdict | None]
READY = Ready(
    "fake", "fake", "unified", "simulator", domain=Domain(paths=("auto", "2d", "3d"), tile_hint=True), sanitizers=True
)


def wrong(shows: Callable[[AttentionCase], object]) -> Bug:
    return lambda case: Verdict("oracle", "mismatch", "wrong", ratio=7.0) if shows(case) else None


def out_of_bounds(line: int, shows: Callable[[AttentionCase], object]) -> Bug:
    site = f"/kernel.py:{line}"
    return lambda case: Verdict("sanitizers", "out_of_bounds", "loads", site=site) if shows(case) else None


def raised(shows: Callable[[AttentionCase], object]) -> Bug:
    verdict = Verdict("oracle", "exception", "the target raised ValueError: no", site="/kernel.py:70")
    return lambda case: verdict if shows(case) else None


def unwritten(shows: Callable[[AttentionCase], object]) -> Bug:
    return lambda case: Verdict("oracle", "unwritten", "1 of 16 elements wrong") if shows(case) else None


def digest_of(case: AttentionCase) -> str:
    """Return what stands for the digest of the tensors of a case."""
    return hashlib.sha256(msgspec.json.encode(case)).hexdigest()[:16]


class FakeWorker(IsolatedWorker):
    """A worker without a process whose target has some bugs; ``judged`` are its orders since it was renewed."""

    def __init__(self, *bugs: Bug) -> None:
        super().__init__(Setup("fake"))
        self.ready = READY
        self.bugs = bugs
        self.judged: list[Order] = []

    def __enter__(self) -> Self:
        return self

    def renew(self) -> None:
        self.judged.clear()

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        if order.digest:
            return Answer(digest=digest_of(order.case))
        answer = self.answer(order)
        self.judged.append(order)
        return answer

    def answer(self, order: Order) -> Answer:
        by_kind: dict[str, Verdict] = {}
        for bug in self.bugs:
            if verdict := bug(order.case):
                by_kind.setdefault(f"{verdict.kind} {verdict.site}", verdict)
        verdicts = sorted(by_kind.values(), key=lambda verdict: verdict.property_name != "sanitizers")
        return Answer(verdicts[0], tuple(verdicts[1:])) if verdicts else Answer(Verdict("oracle", ratio=0.5))


class Run:
    """The events of a campaign on a fake worker."""

    def __init__(
        self,
        folder: Path,
        worker: FakeWorker,
        cases: int,
        seed: int = 1,
        seconds: float | None = None,
        news: News = no_news,
        others: Iterable[Event] = (),
    ) -> None:
        self.events: list[Event] = list(others)
        self.folder = folder / "saved" / "fake"
        plan = Plan(Setup("fake"), 0, 1, seed, seconds, cases, folder / "run", folder / "saved")
        self.campaign = Campaign(plan, self.events.append, worker)
        self.campaign.news = news
        self.campaign.run()
        assert self.report.lost == "", "every failing case is in a row"

    @property
    def failures(self) -> list[Counterexample]:
        """The failures that no other one is the same as."""
        ended = [event for event in self.events if isinstance(event, FailureChanged) and event.done]
        last = {(event.shard, event.failure): event for event in ended}
        return [event.counterexample for event in last.values() if not event.same_as]

    @property
    def report(self) -> RunReport:
        """The report of all events, as a run makes it."""
        return report_of(self.events)

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Note)]

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


def report_of(events: list[Event]) -> RunReport:
    results = Results()
    for event in events:
        results(event)
    return results.report()


def triggers(run: Run) -> set[tuple[str, ...]]:
    return {found.trigger for found in run.failures}


FIVE = {
    "frequent read outside": (
        out_of_bounds(10, lambda case: case.max_seq_len > 1),
        wrong(lambda case: case.num_tokens and case.max_seq_len > 20),
        wrong(lambda case: case.window and case.max_seq_len > case.window and case.num_tokens),
        wrong(lambda case: case.alibi is not None and case.heads.num_kv_heads > 2),
        raised(lambda case: case.softcap and case.sinks is not None and case.heads.num_query_heads > 1),
    ),
    "one that simple cases show": (
        wrong(
            lambda case: (
                case.num_tokens
                and any(s.seq_len % case.pages.block_size for s in case.sequences)
                and case.poison.values in ("nan", "inf")
            )
        ),
        wrong(lambda case: case.window and case.max_seq_len > case.window and case.num_tokens),
        wrong(lambda case: case.num_tokens and case.max_seq_len > case.pages.block_size),
        wrong(lambda case: case.scales.k != case.scales.v and case.num_tokens),
        unwritten(lambda case: len(case.sequences) > 1 and any(not s.query_len for s in case.sequences)),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bugs", FIVE)
def test_five_bugs_are_five_failures(bugs: str, tmp_path: Path) -> None:
    run = Run(tmp_path, FakeWorker(*FIVE[bugs]), cases=1000)
    assert len(run.failures) == len(run.files) == 5, triggers(run)
    for bug in FIVE[bugs]:
        assert any(bug(found.case) for found in run.failures)
    assert run.count(FailureSeenAgain) > 20
    assert {found.confirmation for found in run.failures} == {"confirmed"}


def test_a_failure_is_reduced_to_what_it_needs(tmp_path: Path) -> None:
    bug = wrong(lambda case: case.window and case.max_seq_len > max(40, case.window) and case.num_tokens)
    (found,) = Run(tmp_path, FakeWorker(bug), cases=800).failures
    assert found.trigger == ("sliding window", "more than 16 keys")
    assert found.case == AttentionCase((Sequence(1, 40),), window=1, softmax_scale=0.25)


def test_lengths_do_not_stay_in_a_local_minimum(tmp_path: Path) -> None:
    bug = wrong(lambda case: any(s.query_len and (s.seq_len == 34 or s.seq_len > 96) for s in case.sequences))
    (found,) = Run(tmp_path, FakeWorker(bug), cases=600).failures
    assert [sequence.seq_len for sequence in found.case.sequences] == [34]


def test_no_case_is_launched_twice_while_shrinking(tmp_path: Path) -> None:
    run = Run(tmp_path, FakeWorker(wrong(lambda case: case.max_seq_len > 20)), cases=300)
    judged = [event.order for event in run.events if isinstance(event, CaseJudged) and event.phase == "shrink"]
    assert len(judged) == len(set(judged)) > 10


class SecondLaunch(FakeWorker):
    """A target that is also judged in the second launch of relations that switch a feature on."""

    def answer(self, order: Order) -> Answer:
        relation = RELATIONS.get(order.relation or "")
        answer = super().answer(order)
        if not answer.verdict.passed or relation is None or relation.adds is None:
            return answer
        verdict = super().answer(Order(with_feature(order.case, relation.adds))).verdict
        return Answer(verdict if verdict.passed else msgspec.structs.replace(verdict, property_name=relation.name))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_feature_of_a_second_launch_is_a_feature_of_the_bug(seed: int, tmp_path: Path) -> None:
    bug = wrong(lambda case: case.num_tokens and case.sinks is not None and case.qq_bias is not None)
    run = Run(tmp_path, SecondLaunch(bug), cases=800, seed=seed)
    (found,) = run.failures
    assert (found.relation, set(found.trigger)) == (None, {"bias between new tokens", "sinks"})


class SecondCases(FakeWorker):
    """A target that is also judged in the second launch of one relation."""

    def __init__(self, relation: str, *bugs: Bug) -> None:
        super().__init__(*bugs)
        self.relation = relation

    def answer(self, order: Order) -> Answer:
        answer = super().answer(order)
        if not answer.verdict.passed or order.relation != self.relation:
            return answer
        try:
            second = second_case(order.case, order.relation)
        except CaseError:  # a case may be too large for its second launch as a case of its own
            return answer
        verdict = super().answer(Order(second)).verdict
        return Answer(verdict if verdict.passed else msgspec.structs.replace(verdict, property_name=order.relation))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_relation_that_shows_a_plain_bug_is_that_bug(seed: int, tmp_path: Path) -> None:
    bugs = (
        wrong(lambda case: any(not s.query_len for s in case.sequences) and case.num_tokens > 2),
        out_of_bounds(30, lambda case: case.sequences and not case.sequences[-1].query_len and case.window),
    )
    run = Run(tmp_path, SecondCases("empty_sequences", *bugs), cases=600, seed=seed)
    assert [found.relation for found in run.failures] == [None, None]
    related = [e for e in run.events if isinstance(e, CaseJudged) and e.order.relation == "empty_sequences"]
    assert len(related) > 5


@pytest.mark.parametrize("seed", [1, 2])
def test_poison_of_a_second_launch_is_poison_of_the_bug(seed: int, tmp_path: Path) -> None:
    class Poisoned(SecondCases):
        """A target whose plain launches are judged only while a failure is shrunk."""

        def answer(self, order: Order) -> Answer:
            if order.relation is None and not self.found:
                return Answer(Verdict("oracle", ratio=0.5))
            answer = super().answer(order)
            self.found = self.found or not answer.verdict.passed
            return answer

        found = False

    bug = wrong(lambda case: case.window and case.poison.values not in ("huge", "zero"))
    (found,) = Run(tmp_path, Poisoned("poison_independence", bug), cases=300, seed=seed).failures
    assert (found.relation, found.case.poison.values) == (None, "nan")
    assert {"sliding window", "NaN or Inf in dead values"} <= set(found.trigger)


def test_a_bug_of_a_second_launch_only_keeps_its_relation(tmp_path: Path) -> None:
    class OnlyThere(FakeWorker):
        def answer(self, order: Order) -> Answer:
            wrong = order.relation == "absent_sinks"
            return Answer(Verdict("absent_sinks", "nan", "wrong") if wrong else Verdict("oracle", ratio=0.5))

    (found,) = Run(tmp_path, OnlyThere(), cases=1500).failures  # the first round has no such relation
    assert (found.relation, found.trigger) == ("absent_sinks", ("relation absent_sinks",))


def test_a_new_failure_is_saved_at_once(tmp_path: Path) -> None:
    class Interrupted(FakeWorker):
        def answer(self, order: Order) -> Answer:
            answer = super().answer(order)
            if any(tmp_path.rglob("saved/*/*.json")):
                raise KeyboardInterrupt
            return answer

    with pytest.raises(KeyboardInterrupt):
        Run(tmp_path, Interrupted(wrong(lambda case: case.max_seq_len > 20)), cases=300)
    (path,) = tmp_path.rglob("saved/*/*.json")
    assert counterexamples.load(path).confirmation == "unconfirmed"


class Counting(FakeWorker):
    """A target that fails from the case on that follows a soft cap in the same process."""

    def answer(self, order: Order) -> Answer:
        if any(earlier.case.softcap for earlier in self.judged) and order.case.max_seq_len > 8:
            return Answer(Verdict("oracle", "mismatch", "wrong", ratio=7.0))
        return Answer(Verdict("oracle", ratio=0.5))


def test_a_failure_after_earlier_cases_keeps_their_sequence(tmp_path: Path) -> None:
    run = Run(tmp_path, Counting(), cases=200)
    (found,) = run.failures
    assert found.confirmation == "state"
    assert len(found.sequence) == 1
    assert found.sequence[0].case.softcap
    assert counterexamples.load(run.files[0]) == found


class Flaky(FakeWorker):
    """A target that fails in every 23rd launch."""

    launches = 0

    def answer(self, order: Order) -> Answer:
        self.launches += 1
        if self.launches % 23:
            return Answer(Verdict("oracle", ratio=0.5))
        return Answer(Verdict("oracle", "mismatch", "wrong", ratio=7.0))


def test_a_flaky_failure_says_how_often_it_failed(tmp_path: Path) -> None:
    run = Run(tmp_path, Flaky(), cases=200)
    (found,) = run.failures
    assert found.confirmation in ("flaky", "state")
    assert found.confirmation == "state" or 0 < found.failed < found.tries
    assert len(run.files) == 1


def test_a_failure_that_is_shrunk_later_has_the_digest_of_its_last_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PART", "LEAST_SECONDS"):
        monkeypatch.setattr(reduction, name, 0.0)
    run = Run(tmp_path, FakeWorker(wrong(lambda case: case.sinks is not None)), cases=20, seconds=600.0)
    first = counterexamples.load(run.files[0])
    assert (first.shrunk, first.digest) == (False, digest_of(first.case))
    monkeypatch.undo()
    run.campaign._lives.resume(600.0)
    (last,) = map(counterexamples.load, run.files)
    assert last.shrunk
    assert last.case != first.case
    assert last.digest == digest_of(last.case)


class Hanging(FakeWorker):
    """A target that hangs with sinks. ``slow`` is true of orders that take longer than a short wait."""

    def __init__(self, slow: Callable[[Order], bool] = lambda order: False) -> None:
        super().__init__()
        self.slow = slow
        self.waits: list[tuple[Wait, Order]] = []

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        if not order.digest:
            self.waits.append((wait, order))
        if order.digest or (order.case.sinks is None and not (wait == "short" and self.slow(order))):
            return super().judge(order, deadline=deadline)
        verdict = Verdict("oracle", "timeout", f"the launch did not end within {3 if wait == 'short' else 30} s")
        return Answer(verdict, fresh=wait == "short, then full")

    def hung(self, wait: Wait) -> list[Order]:
        """Return the orders with sinks that were to wait so."""
        return [order for each, order in self.waits if each == wait and order.case.sinks is not None]


def test_only_a_new_hang_and_its_shrunk_case_take_the_full_limit(tmp_path: Path) -> None:
    worker = Hanging()
    run = Run(tmp_path, worker, cases=300)
    (found,) = run.failures
    assert (found.trigger, found.confirmation, found.shrunk) == (("sinks",), "confirmed", True)
    assert found.verdict.message == "the launch did not end within 30 s"
    assert len(worker.hung("short, then full")) == 1
    assert worker.hung("full") == [Order(found.case)], "it is checked, and nothing else confirmed"


def test_most_cases_of_a_known_hang_are_not_drawn(tmp_path: Path) -> None:
    run = Run(tmp_path, Hanging(), cases=600)
    found = next(index for index, event in enumerate(run.events) if isinstance(event, FailureChanged) and event.done)
    later = [event.order.case for event in run.events[found:] if isinstance(event, CaseJudged)]
    assert len(later) > 500
    assert sum(case.sinks is not None for case in later) <= 12, "a quarter of all drawn cases has sinks"


def test_a_slow_case_does_not_become_a_shrunk_hang(tmp_path: Path) -> None:
    run = Run(tmp_path, Hanging(slow=lambda order: True), cases=60)
    assert run.failures
    for found in run.failures:
        assert found.case.sinks is not None
        assert (found.confirmation, found.shrunk) == ("confirmed", False)
        assert found.verdict.message == "the launch did not end within 30 s"


def test_a_hang_that_could_not_be_checked_stays_as_it_was_found(tmp_path: Path) -> None:
    class Interrupted(Hanging):
        def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
            if wait == "full" and not order.digest:
                raise KeyboardInterrupt
            return super().judge(order, deadline=deadline, wait=wait)

    worker = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        Run(tmp_path, worker, cases=300)
    (path,) = tmp_path.rglob("saved/*/*.json")
    found = counterexamples.load(path)
    assert [Order(found.case, found.relation)] == worker.hung("short, then full")
    assert len(worker.hung("short")) > 5
    assert (found.confirmation, found.shrunk) == ("confirmed", False)
    assert found.verdict.message == "the launch did not end within 30 s"


class KilledOnce(FakeWorker):
    """A worker that something outside ends once."""

    launches = 0

    def answer(self, order: Order) -> Answer:
        self.launches += 1
        if self.launches == 20:
            return Answer(Verdict("oracle", "crash", "died of SIGKILL"), killed=True)
        return Answer(Verdict("oracle", ratio=0.5))


def test_a_worker_that_was_killed_from_outside_is_a_note(tmp_path: Path) -> None:
    run = Run(tmp_path, KilledOnce(), cases=50)
    assert not run.failures
    assert not run.files
    (note,) = [event.text for event in run.events if isinstance(event, Note)]
    assert note == "a worker was ended from outside, and the case that it was running passes in another"


def marked(path: Path, **fields: str) -> None:
    counterexamples.overwrite(msgspec.structs.replace(counterexamples.load(path), **fields), path)


def test_a_saved_failure_is_played_first_and_found_once(tmp_path: Path) -> None:
    worker = FakeWorker(wrong(lambda case: case.max_seq_len > 20))
    (path,) = Run(tmp_path, worker, cases=200).files
    marked(path, status="known", reference="#7", because="waits for a release")
    again = Run(tmp_path, worker, cases=200, seed=2)
    (found,) = again.failures
    assert (found.status, again.files) == ("known", [path])
    first = next(event for event in again.events if isinstance(event, CaseJudged))
    assert (first.phase, first.order.case) == ("saved", found.case)
    assert counterexamples.load(path).status == "known"


def test_a_known_failure_that_passes_is_reported(tmp_path: Path) -> None:
    (path,) = Run(tmp_path, FakeWorker(wrong(lambda case: case.max_seq_len > 20)), cases=200).files
    marked(path, status="known", reference="#7", because="waits for a release")
    mended = Run(tmp_path, FakeWorker(), cases=20)
    assert not mended.failures
    (passed,) = [event for event in mended.events if isinstance(event, SavedPassed)]
    assert (passed.path, passed.counterexample.status) == (str(path), "known")


def test_a_fixed_failure_that_fails_again_is_a_failure(tmp_path: Path) -> None:
    worker = FakeWorker(wrong(lambda case: case.max_seq_len > 20))
    (path,) = Run(tmp_path, worker, cases=200).files
    marked(path, status="fixed")
    (found,) = Run(tmp_path, worker, cases=50).failures
    assert found.status == "fixed"


def test_a_saved_failure_names_the_poison_that_reached_the_output(tmp_path: Path) -> None:
    class Explaining(FakeWorker):
        def answer(self, order: Order) -> Answer:
            answer = super().answer(order)
            if not order.explain or answer.verdict.passed:
                return answer
            message = f"{answer.verdict.message}; NaN in dead values reaches the output"
            return Answer(msgspec.structs.replace(answer.verdict, message=message))

    run = Run(tmp_path, Explaining(wrong(lambda case: case.max_seq_len > 20)), cases=200)
    (path,) = run.files
    assert counterexamples.load(path).verdict.message.endswith("; NaN in dead values reaches the output")
    assert run.failures == [counterexamples.load(path)]


# Nothing is lost.


def crash(shows: Callable[[AttentionCase], object]) -> Bug:
    return lambda case: Verdict("oracle", "crash", "died of SIGABRT") if shows(case) else None


def save_known(folder: Path, verdict: Verdict, case: AttentionCase) -> Path:
    """Save a failure of the fake target that is marked as known."""
    found = counterexamples.signed("fake", "unified", None, case, verdict)
    marks = {"status": "known", "reference": "#7", "because": "waits", "confirmation": "confirmed", "shrunk": True}
    return counterexamples.save(msgspec.structs.replace(found, **marks), folder / "saved" / "fake")


def test_known_failures_and_those_of_other_shards_take_no_room(tmp_path: Path) -> None:
    worker = FakeWorker(wrong(lambda case: case.max_seq_len > 20))
    lines = range(1, MOST_FAILURES + 6)
    for line in lines:
        case = AttentionCase((Sequence(1, 1),), seed=1000 + line)
        worker.bugs += (out_of_bounds(line, lambda drawn, case=case: drawn == case),)  # type: ignore[misc] # a default
        (verdict,) = (Answer(worker.bugs[-1](case) or Verdict("oracle")).verdict,)
        save_known(tmp_path, verdict, case)
    run = Run(tmp_path, worker, cases=60)
    assert sum(found.status == "known" for found in run.failures) == len(lines)
    (new,) = [found for found in run.failures if found.status == "open"]
    assert new.shrunk
    assert run.report.exit_status == 1


SIX_LINES = tuple(out_of_bounds(line, lambda case, line=line: case.max_seq_len > line) for line in range(2, 14, 2))  # type: ignore[misc] # a default


def test_what_is_not_followed_is_saved_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "MOST_FAILURES", 2)
    run = Run(tmp_path, FakeWorker(*SIX_LINES), cases=60)
    rows = run.report.failures
    assert [row.followed for row in rows] == [True] * 2 + [False] * 4
    assert {row.counterexample.verdict.site for row in rows} == {f"/kernel.py:{line}" for line in range(2, 14, 2)}
    for row in rows[2:]:
        assert (row.counterexample.confirmation, row.counterexample.shrunk, row.fails) == ("unconfirmed", False, True)
        assert counterexamples.load(Path(row.path)) == row.counterexample
        assert row.cases > 1
    assert run.report.exit_status == 1
    assert run.report.statistics.failing > 20


def test_what_is_not_followed_is_grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "MOST_FAILURES", 0)
    monkeypatch.setattr(records, "MOST_FILES", 3)
    bugs = wrong(lambda case: case.max_seq_len > 4), crash(lambda case: case.max_seq_len == 3)
    run = Run(tmp_path, FakeWorker(*bugs), cases=200)
    rows = run.report.failures
    assert sorted(row.counterexample.verdict.kind for row in rows) == ["crash", *["mismatch"] * 3]
    assert len(run.files) == 4
    assert sum(row.cases for row in rows) == run.report.statistics.failing > 100


def test_a_failure_beside_the_one_that_is_shrunk_is_saved_and_followed(tmp_path: Path) -> None:
    bugs = (
        wrong(lambda case: case.seed and case.max_seq_len > 20),
        crash(lambda case: not case.seed and case.max_seq_len > 20),
    )
    run = Run(tmp_path, FakeWorker(*bugs), cases=30)
    shown = [
        event.phase
        for event in run.events
        if isinstance(event, CaseJudged) and any(verdict.kind == "crash" for verdict in event.verdicts)
    ]
    assert shown[0] == "shrink", "the search has not seen it"
    assert {found.verdict.kind for found in run.failures} == {"mismatch", "crash"}
    assert all(found.shrunk for found in run.failures)


@pytest.mark.parametrize("during", [CaseJudged, FailureFound])
def test_an_interrupt_right_after_a_verdict_loses_no_failure(during: type[Event], tmp_path: Path) -> None:
    events: list[Event] = []

    def emit(event: Event) -> None:
        events.append(event)
        failed = not isinstance(event, CaseJudged) or not event.verdicts[0].passed
        if isinstance(event, during) and failed and sum(isinstance(each, during) for each in events) < 200:
            raise KeyboardInterrupt

    bugs = wrong(lambda case: case.max_seq_len > 20), out_of_bounds(3, lambda case: case.max_seq_len > 20)
    plan = Plan(Setup("fake"), 0, 1, 1, None, 100, tmp_path / "run", tmp_path / "saved")
    with pytest.raises(KeyboardInterrupt):
        Campaign(plan, emit, FakeWorker(*bugs)).run()
    report = report_of(events)
    saved = {counterexamples.load(path).verdict.kind for path in tmp_path.rglob("saved/*/*.json")}
    assert saved >= ({"mismatch", "out_of_bounds"} if during is CaseJudged else {"out_of_bounds"})
    assert report.exit_status == 1


def test_a_mark_covers_its_class_only(tmp_path: Path) -> None:
    case = AttentionCase((Sequence(1, 30),))
    path = save_known(tmp_path, Verdict("oracle", "mismatch", "wrong", ratio=7.0), case)
    before = path.read_bytes()
    crashes = crash(lambda drawn: drawn.max_seq_len > 20)
    run = Run(tmp_path, FakeWorker(crashes), cases=1)
    (found,) = run.failures
    assert (found.status, found.verdict.kind) == ("open", "crash")
    assert run.report.exit_status == 1
    assert path.read_bytes() == before
    assert len(run.files) == 2
    assert any("fails in another way than it says (oracle (mismatch)): oracle (crash)" in note for note in run.notes)
    again = Run(tmp_path, FakeWorker(crashes), cases=1, seed=2)
    assert again.files == run.files, "its own file has it from then on"
    assert again.report.exit_status == 1


@pytest.mark.parametrize("status", ["known", "fixed", "open"])
def test_a_failure_beside_that_of_a_saved_file_is_a_failure_of_its_own(status: str, tmp_path: Path) -> None:
    case = AttentionCase((Sequence(1, 30),))
    path = save_known(tmp_path, Verdict("oracle", "mismatch", "wrong", ratio=7.0), case)
    marked(path, status=status)
    both = wrong(lambda drawn: drawn.max_seq_len > 20), out_of_bounds(9, lambda drawn: drawn.max_seq_len > 20)
    run = Run(tmp_path, FakeWorker(*both), cases=1)
    assert {(found.status, found.verdict.kind) for found in run.failures} == {
        (status, "mismatch"),
        ("open", "out_of_bounds"),
    }
    assert run.report.exit_status == 1


def test_a_case_before_a_saved_failure_that_fails_now_is_a_failure(tmp_path: Path) -> None:
    first, last = AttentionCase((Sequence(1, 40),)), AttentionCase((Sequence(1, 3),))
    path = save_known(tmp_path, Verdict("oracle", "mismatch", "wrong", ratio=7.0), last)
    found = counterexamples.load(path)
    steps = (counterexamples.Step(first),)
    counterexamples.overwrite(msgspec.structs.replace(found, confirmation="state", sequence=steps), path)
    run = Run(tmp_path, FakeWorker(crash(lambda drawn: drawn.max_seq_len > 30)), cases=1)
    assert "crash" in {found.verdict.kind for found in run.failures}
    assert run.report.exit_status == 1


def test_news_of_a_failure_that_is_being_shrunk_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PART", "LEAST_SECONDS"):
        monkeypatch.setattr(reduction, name, 0.0)
    run = Run(tmp_path, FakeWorker(wrong(lambda case: case.sinks is not None)), cases=20, seconds=600.0)
    monkeypatch.undo()
    found = next(event for event in reversed(run.events) if isinstance(event, FailureChanged) and event.done)
    told = iter([[msgspec.structs.replace(found, shard=-5, path="elsewhere.json")]])
    run.campaign.news = lambda: next(told, [])
    run.events.clear()
    run.campaign._lives.resume(600.0)
    ends = [event for event in run.events if isinstance(event, FailureChanged) and event.done]
    assert all(event.same_as for event in ends)
    assert len({event.failure for event in ends}) == len(ends), "each ends once"
    assert run.files == []


def test_what_other_shards_tell_twice_is_learned_once(tmp_path: Path) -> None:
    run = Run(tmp_path, FakeWorker(wrong(lambda case: case.sinks is not None)), cases=100)
    told = next(event for event in reversed(run.events) if isinstance(event, FailureChanged) and event.done)
    foreign = msgspec.structs.replace(told, shard=5, path="elsewhere.json")
    other = Run(tmp_path / "other", FakeWorker(), cases=1).campaign._lives
    for _ in range(3):
        other.learn([foreign, foreign])
    (known,) = other.known
    assert (known.shard, known.path) == (5, "elsewhere.json")
    simpler = msgspec.structs.replace(foreign.counterexample, trigger=())
    other.learn([msgspec.structs.replace(foreign, counterexample=simpler), foreign])
    assert len(other.known) == 1
    other.learn([msgspec.structs.replace(foreign, failure=9, path="")])
    assert len(other.known) == 1, "one without a file stands for no other"


def test_a_failure_without_a_file_gets_one_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, tries = counterexamples.save, iter(range(100))

    def full_at_first(found: Counterexample, folder: Path) -> Path:
        if not next(tries):
            raise OSError("the disk is full")
        return save(found, folder)

    monkeypatch.setattr(counterexamples, "save", full_at_first)
    run = Run(tmp_path, FakeWorker(wrong(lambda case: case.max_seq_len > 20)), cases=50)
    (row,) = run.report.failures
    assert [Path(row.path)] == run.files
    assert counterexamples.load(run.files[0]) == row.counterexample
    assert row.cases == run.report.statistics.failing > 10
    assert run.report.exit_status == 1


class CrashingProbes(FakeWorker):
    """A target that refuses sinks and crashes on a single sequence with sinks off that only probes draw."""

    def judge(self, order: Order, *, deadline: float | None = None, wait: Wait = "full") -> Answer:
        if order.probes:
            self.probed = order.probes
            return Answer(Verdict("oracle", "crash", "died of SIGABRT"))
        if order.case.sinks is not None:
            return Answer(refusal=Refusal("host", "ValueError", "no sinks", "/target.py:3"))
        if order.case in self.probed:
            return Answer(Verdict("oracle", "crash", "died of SIGABRT"))
        return super().judge(order, deadline=deadline)

    probed: tuple[AttentionCase, ...] = ()


def test_a_crash_in_a_probe_of_a_refusal_is_a_failure(tmp_path: Path) -> None:
    run = Run(tmp_path, CrashingProbes(), cases=60)
    assert {found.verdict.kind for found in run.failures} == {"crash"}
    assert run.report.exit_status == 1
