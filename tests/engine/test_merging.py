"""Merged runs: their union is one run, whatever the order and however often they are merged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import Sequence
from fuzz_attn.counterexamples import Counterexample, signed
from fuzz_attn.engine.events import (
    WHOLE_RUN,
    CaseJudged,
    CaseRefused,
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Finished,
    Note,
    Part,
    SavedPassed,
    Started,
    WorkerReady,
)
from fuzz_attn.engine.listeners.event_log import LOG_NAME, DistributionsLine, EventLog, read_log, report_of
from fuzz_attn.engine.listeners.results import FoundFailure
from fuzz_attn.engine.merging import MergedRun, merge, united
from fuzz_attn.engine.orders import Order, Ready, Setup
from fuzz_attn.engine.run_plan import RunPlan, shard_plans
from fuzz_attn.errors import MergeError
from fuzz_attn.oracle.verdict import Refusal, Verdict

PLAIN = AttentionCase((Sequence(1, 16),), softmax_scale=0.25)
WINDOW = replace(PLAIN, window=4)
CAPPED = replace(PLAIN, softcap=8.0)


def found(case: AttentionCase, *trigger: str, status: str = "open") -> Counterexample:
    verdict = Verdict("oracle", "nan", "wrong")
    new = signed("t", "unified", None, case, verdict)
    new = msgspec.structs.replace(new, confirmation="confirmed", shrunk=True, trigger=trigger)
    known = {"status": "known", "reference": "#7", "because": "it is"} if status == "known" else {}
    return msgspec.structs.replace(new, **known)


BUGS = (found(WINDOW, "sliding window"), found(CAPPED, "softcap"), found(WINDOW, "sliding window", status="known"))


def write(folder: Path, events: Iterable[Event]) -> Path:
    """Write the log of a run; return its folder."""
    with EventLog(folder / LOG_NAME) as log:
        for event in events:
            log(event)
    return folder


def events_of(part: Part, shards: Iterable[tuple[int, tuple[int, ...]]], seed: int = 7) -> list[Event]:
    """Return the events of a run: each shard judges some cases and finds some of the bugs."""
    numbered = list(enumerate(shards))
    events: list[Event] = [Started("t", seed, len(numbered), 100.0 + part.number, 60.0, None, part)]
    for shard, (cases, bugs) in numbered:
        events.append(WorkerReady(shard, Ready("t", "slug", "unified", "simulator")))
        events += [CaseJudged(shard, "search", Order(PLAIN), (Verdict("oracle", ratio=0.5),), 0.01)] * cases
        events.append(CaseRefused(shard, "search", Order(CAPPED), Refusal("host", "ValueError", "no", "f:1")))
        events.append(Note(shard, "the same note of all"))
        for number, bug in enumerate(bugs):
            path, saved = f"part-{part.number}/{shard}-{number}.json", BUGS[bug].status == "known"
            path = "tests/known.json" if saved else path
            events.append(FailureFound(shard, number, BUGS[bug], path, 1.0 + number, saved))
            events.append(FailureSeenAgain(shard, path))
            events.append(FailureChanged(shard, number, BUGS[bug], path, done=True))
        events.append(Finished(shard, 2.0 + cases))
    return [*events, Finished(WHOLE_RUN, 3.0)]


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


Runs = list[list[tuple[int, tuple[int, ...]]]]
RUNS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([(), (0,), (1,), (2,), (0, 1), (1, 2)])), min_size=1),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(runs=RUNS, data=st.data())
def test_merging_knows_neither_order_nor_repetition(runs: Runs, data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        of = len(runs)
        parts = [
            write(folder / f"part-{number}", events_of(Part(number, of), run)) for number, run in enumerate(runs, 1)
        ]
        out = folder / "merged"
        merge(parts, out)
        expected = files_in(out)
        merge(parts, out)
        assert files_in(out) == expected, "merging twice changes nothing"
        merge([out], out)
        assert files_in(out) == expected, "merging a merged folder with itself changes nothing"
        shutil.rmtree(out)
        order = data.draw(st.permutations(parts))
        first = data.draw(st.integers(1, of))
        merge([*order[:first], order[0]], out)
        merge([*order[first:], *order[:1]], out)
        assert files_in(out) == expected, "the order changes nothing, and a part counts once"


@settings(max_examples=40, deadline=None)
@given(runs=RUNS)
def test_the_union_counts_everything_once(runs: Runs) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        parts = [
            write(folder / f"part-{number}", events_of(Part(number, len(runs)), run))
            for number, run in enumerate(runs, 1)
        ]
        (merged,) = merge(parts, folder / "merged")
        statistics, shards = merged.report.statistics, [shard for run in runs for shard in run]
        assert statistics.cases == sum(cases for cases, _ in shards)
        assert statistics.shards == len(shards)
        assert statistics.refused == len(shards)
        assert sum(statistics.compile_keys.values()) == statistics.cases
        seen = [bug for _, bugs in shards for bug in bugs]
        # The known failure and the first bug are one.
        distinct = {(1 if bug == 1 else 0) for bug in seen}
        assert len(merged.report.failures) == len(distinct)
        assert sum(failure.cases for failure in merged.report.failures) == 2 * len(seen)
        unknown = {bug for bug in seen if bug == 1 or (bug == 0 and 2 not in seen)}
        assert merged.report.exit_status == (1 if unknown else 0 if statistics.cases or seen else 2)
        assert merged.report.notes == ("the same note of all",)


@pytest.fixture
def merged(tmp_path: Path) -> Callable[..., MergedRun]:
    """Return a function that merges runs, given by their events."""

    def made(*runs: Iterable[Event]) -> MergedRun:
        parts = [write(tmp_path / f"part-{number}", events) for number, events in enumerate(runs)]
        (run,) = merge(parts, tmp_path / "merged")
        return run

    return made


Merged = Callable[..., MergedRun]


def test_a_merged_log_is_the_log_of_one_run(merged: Merged, tmp_path: Path) -> None:
    run = merged(events_of(Part(1, 2), [(3, (0,)), (2, ())]), events_of(Part(2, 2), [(4, (0, 1))]))
    lines = list(read_log(run.folder / LOG_NAME))
    first, last = lines[0], lines[-1]
    assert isinstance(first, Started)
    assert (first.workers, first.max_time, first.time, first.part) == (3, 60.0, 101.0, Part())
    assert isinstance(last, Finished)
    assert (last.shard, last.error) == (WHOLE_RUN, "")
    assert {line.shard for line in lines if isinstance(line, WorkerReady)} == {0, 1, 2}
    assert report_of(run.folder / LOG_NAME) == run.report
    assert len(run.report.failures) == 2
    for failure in run.report.failures:
        path = Path(failure.path)
        assert path.parent == tmp_path / "merged" / "counterexamples" / "slug"
        assert counterexamples.load(path) == failure.counterexample
    assert run.report.statistics.counterexamples == tuple(sorted(failure.path for failure in run.report.failures))


def test_the_distributions_of_all_parts_add_up(merged: Merged) -> None:
    run = merged(events_of(Part(1, 2), [(3, ())]), events_of(Part(2, 2), [(4, ())]))
    (line,) = (line for line in read_log(run.folder / LOG_NAME) if isinstance(line, DistributionsLine))
    assert line.distributions.sizes["sequences"] == {1: 7}
    assert line.distributions.seconds["search"] == pytest.approx(0.07)


def test_a_status_given_to_a_merged_file_stays(merged: Merged, tmp_path: Path) -> None:
    run = merged(events_of(Part(), [(3, (0,))]))
    assert run.report.exit_status == 1
    (failure,) = run.report.failures
    counterexamples.overwrite(BUGS[2], Path(failure.path))
    (again,) = merge([tmp_path / "part-0"], tmp_path / "merged")
    assert again.report.exit_status == 0
    assert counterexamples.load(Path(again.report.failures[0].path)) == BUGS[2]


def test_a_file_that_turns_out_to_be_another_failure_is_deleted(merged: Merged, tmp_path: Path) -> None:
    partly = msgspec.structs.replace(found(replace(WINDOW, softcap=8.0), "sliding window", "softcap"), shrunk=False)
    events = [*events_of(Part(1, 2), [(3, ())])[:-1], FailureFound(0, 0, partly, "a.json", 0.5), Finished(WHOLE_RUN, 3)]
    run = merged(events)
    (file,) = (tmp_path / "merged" / "counterexamples").rglob("*.json")
    write(tmp_path / "other", events_of(Part(2, 2), [(3, (0,))]))
    (run,) = merge([tmp_path / "other"], tmp_path / "merged")
    (failure,) = run.report.failures
    assert failure.counterexample == BUGS[0]
    assert (failure.first_seen, failure.cases) == (0.5, 3)
    assert not file.exists()


def test_what_is_missing_is_an_error(merged: Merged) -> None:
    cut_off = events_of(Part(1, 4), [(3, ())])[:-1]
    run = merged(cut_off, events_of(Part(3, 4), [(3, ())]))
    assert run.report.exit_status == 2
    (error,) = run.report.errors
    assert "the log of part 1 of 4 with seed 7 is cut off" in error
    assert "of 4 parts with seed 7 there is none of 2, 4" in error


def test_a_signal_that_ended_a_part_ended_the_run(merged: Merged) -> None:
    events = [*events_of(Part(), [(3, ())])[:-1], Finished(WHOLE_RUN, 3.0, stopped_by=15)]
    assert merged(events).report.exit_status == 143


def test_a_longer_log_of_the_same_run_replaces_a_shorter_one(merged: Merged, tmp_path: Path) -> None:
    events = events_of(Part(), [(3, ()), (4, ())])
    run = merged(events[:5])
    assert run.report.cases < 7
    write(tmp_path / "later", events)
    (run,) = merge([tmp_path / "later", tmp_path / "part-0"], tmp_path / "merged")
    assert (run.report.cases, run.report.exit_status) == (7, 0)


def test_saved_failures_stay_apart_and_passes_are_told_once(merged: Merged) -> None:
    other = msgspec.structs.replace(found(replace(WINDOW, softcap=8.0), "sliding window"), status="fixed")
    rows = [FoundFailure(each, f"{number}.json", 1.0, saved=True) for number, each in enumerate((BUGS[2], other))]
    assert len(united([*rows, *rows])) == 2
    passed = SavedPassed(0, BUGS[2], "tests/known.json")
    runs = [[*events_of(Part(number, 2), [(1, ())])[:-1], passed, Finished(WHOLE_RUN, 3.0)] for number in (1, 2)]
    notes = merged(*runs).report.notes
    assert len(notes) == 2
    assert sum("unexpected pass" in note for note in notes) == 1


def test_each_target_has_a_folder(tmp_path: Path) -> None:
    one, two = events_of(Part(), [(3, ())]), events_of(Part(), [(2, ())])
    two[0] = Started("m.py:other", 7, 1, 1.0)
    write(tmp_path / "parts" / "one", one)
    write(tmp_path / "parts" / "two", two)
    runs = merge([tmp_path / "parts"], tmp_path / "merged")
    assert [(run.folder.name, run.report.cases) for run in runs] == [("m.py-other", 2), ("t", 3)]


def test_places_without_runs_are_errors(tmp_path: Path) -> None:
    with pytest.raises(MergeError, match="missing: does not exist"):
        merge([tmp_path / "missing"], tmp_path / "merged")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MergeError, match=r"empty: holds no events\.jsonl of a run"):
        merge([tmp_path / "empty"], tmp_path / "merged")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / LOG_NAME).write_text('{"event":"other"}\n')
    with pytest.raises(MergeError, match=r"events\.jsonl: is no log of a run"):
        merge([tmp_path / "broken"], tmp_path / "merged")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "mine.py").touch()
    with pytest.raises(MergeError, match="tests must be a new folder or one that merge has written"):
        merge([write(tmp_path / "part", events_of(Part(), [(1, ())]))], tmp_path / "tests")


@settings(deadline=None)
@given(of=st.integers(1, 9), workers=st.integers(1, 9), cases=st.integers(1, 400))
def test_parts_have_the_shards_and_cases_of_one_large_run(of: int, workers: int, cases: int) -> None:
    def plans(part: Part, workers: int) -> dict[int, int | None]:
        plan = RunPlan(Setup("t"), 7, workers, None, cases, Path("run"), Path("saved"), part)
        return {plan.shard: plan.max_cases for plan in shard_plans(plan)}

    parts: dict[int, int | None] = {}
    for number in range(1, of + 1):
        own = plans(Part(number, of), workers)
        assert parts.keys().isdisjoint(own)
        parts |= own
    assert parts == plans(Part(), workers * of)


@given(one=st.integers(1, 9), other=st.integers(1, 9))
def test_parts_with_different_workers_share_no_shard(one: int, other: int) -> None:
    numbers = [
        plan.shard
        for number, workers in ((1, one), (2, other))
        for plan in shard_plans(RunPlan(Setup("t"), 7, workers, 1.0, None, Path("r"), Path("s"), Part(number, 2)))
    ]
    assert len(numbers) == len(set(numbers))


def test_a_log_names_no_file_outside_of_the_output_directory(tmp_path: Path) -> None:
    folder = write(tmp_path / "part", events_of(Part(), [(1, (0,))]))
    log = folder / LOG_NAME
    signature = BUGS[0].signature.encode()
    log.write_bytes(log.read_bytes().replace(b'"signature":"%b"' % signature, b'"signature":"../../../escaped"'))
    with pytest.raises(MergeError, match=r"events\.jsonl: is no log of a run: .*signature"):
        merge([folder], tmp_path / "deep" / "merged")
    assert {path.name for path in tmp_path.rglob("*.json")} == set()


@pytest.mark.parametrize("slug", ["..", "../x", "/tmp/x", "a/b", ".hidden", "", "a\n", "-rf"])
def test_a_slug_is_the_name_of_a_folder(slug: str, tmp_path: Path) -> None:
    events = [*events_of(Part(), [(1, ())])[:1], WorkerReady(0, Ready("t", slug, "unified", "simulator"))]
    with pytest.raises(MergeError, match=r"is no log of a run: .*slug"):
        merge([write(tmp_path / "part", events)], tmp_path / "merged")


def renamed(events: Iterable[Event], target: str, slug: str) -> list[Event]:
    """Return the events of a run of another target."""
    started, ready, *rest = events
    assert isinstance(started, Started)
    assert isinstance(ready, WorkerReady)
    named = msgspec.structs.replace(ready.ready, slug=slug)
    return [msgspec.structs.replace(started, target=target), msgspec.structs.replace(ready, ready=named), *rest]


@pytest.mark.parametrize("other", ["a-b", "A:b"])
def test_two_targets_with_one_name_of_a_folder_keep_their_failures(other: str, tmp_path: Path) -> None:
    one, two = events_of(Part(), [(1, (0,))]), events_of(Part(), [(1, (0,))])
    parts = [write(tmp_path / "1", renamed(one, "a:b", "s")), write(tmp_path / "2", renamed(two, other, "S"))]
    runs = merge(parts, tmp_path / "merged")
    assert len({run.folder.name.casefold() for run in runs}) == 2
    files = {Path(failure.path) for run in runs for failure in run.report.failures}
    assert len(files) == 2
    assert all(file.exists() for file in files)
    before = files_in(tmp_path / "merged")
    merge(parts, tmp_path / "merged")
    assert files_in(tmp_path / "merged") == before


@pytest.mark.parametrize("target", ["parts", "counterexamples", "::", "x" * 5000])
def test_a_target_of_any_name_has_a_folder_of_its_own(target: str, tmp_path: Path) -> None:
    part = write(tmp_path / "part", renamed(events_of(Part(), [(1, (0,))]), target, "s"))
    (run,) = merge([part], tmp_path / "merged")
    assert run.folder.parent == tmp_path / "merged"
    assert run.folder.name not in ("", "parts", "counterexamples")
    assert run.report.exit_status == 1


def test_another_failure_of_a_known_case_is_not_lost() -> None:
    """One part knows that the case gives NaN; in another its process dies."""
    crash = msgspec.structs.replace(BUGS[0], verdict=Verdict("oracle", "crash", "died"))
    rows = [FoundFailure(BUGS[2], "a.json", 1.0, saved=True), FoundFailure(crash, "b.json", 2.0, saved=True)]
    assert [failure.fails for failure in united(rows)] == [False, True]


def test_a_mark_of_a_merged_file_covers_its_class_only(merged: Merged, tmp_path: Path) -> None:
    run = merged(events_of(Part(1, 2), [(3, (0,))]))
    (failure,) = run.report.failures
    counterexamples.overwrite(BUGS[2], Path(failure.path))
    crash = msgspec.structs.replace(BUGS[0], verdict=Verdict("oracle", "crash", "died"))
    events = [*events_of(Part(2, 2), [(3, ())])[:-1], FailureFound(0, 0, crash, "c.json", 0.5), Finished(WHOLE_RUN, 3)]
    (run,) = merge([write(tmp_path / "other", events)], tmp_path / "merged")
    assert {failure.counterexample.status for failure in run.report.failures} == {"known", "open"}
    assert run.report.exit_status == 1


def test_notes_and_errors_of_whole_runs_stay(merged: Merged) -> None:
    events = [*events_of(Part(), [(3, ())])[:-1], Note(WHOLE_RUN, "of all"), Finished(WHOLE_RUN, 3.0, "it broke")]
    run = merged(events)
    assert "of all" in run.report.notes
    assert "it broke" in run.report.errors
    assert run.report.exit_status == 2


def test_a_file_is_replaced_and_no_link_is_followed(tmp_path: Path) -> None:
    part, out = write(tmp_path / "part", events_of(Part(), [(1, (0,))])), tmp_path / "merged"
    (run,) = merge([part], out)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    places = [run.folder / LOG_NAME, *(out / "counterexamples").rglob("*.json"), run.folder / f".{LOG_NAME}.part"]
    for place in places:
        place.unlink(missing_ok=True)
        place.symlink_to(precious)
    (run,) = merge([part], out)
    assert run.report.exit_status == 1
    assert precious.read_text() == "precious"
    assert not any(place.is_symlink() for place in places[:-1])
