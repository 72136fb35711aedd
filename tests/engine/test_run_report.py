"""What a report says of its run: the exit status, what is lost, and what was judged too little."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.contract_trial import ContractTrial
from fuzz_attn.case.parts import DTypes, Sequence
from fuzz_attn.cli.run import exit_status
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.events import (
    CaseExcused,
    CaseJudged,
    CaseRefused,
    CaseUnsupported,
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Finished,
    Phase,
    Started,
    WorkerReady,
    name_of,
)
from fuzz_attn.engine.listeners.event_log import EventLog, report_of
from fuzz_attn.engine.listeners.results import Results, RunReport, one_for_each_bug, united_with_other_runs
from fuzz_attn.engine.orders import Order, Ready
from fuzz_attn.oracle.verdict import Kind, Refusal, Verdict
from fuzz_attn.report import run_documents
from fuzz_attn.report.outcome import cause, failures_list, outcome
from fuzz_attn.report.printing import text_of
from fuzz_attn.report.run_documents import json_document, save_junit
from fuzz_attn.report.summary import render

CASE = AttentionCase((Sequence(1, 16),))
PASSED = CaseJudged(0, "search", Order(CASE), (Verdict("oracle", ratio=0.5),), 0.1)
REFUSED = CaseRefused(0, "search", Order(CASE), Refusal("host", "ValueError", "no such size", "f:1"))
UNSUPPORTED = CaseUnsupported(0, "search", Order(CASE), "tl.histogram at kernel.py:3")


def failed(*kinds: Kind, phase: Phase = "search", case: AttentionCase = CASE) -> CaseJudged:
    return CaseJudged(0, phase, Order(case), tuple(Verdict("oracle", kind, "wrong") for kind in kinds), 0.1)


def found(kind: Kind = "mismatch", case: AttentionCase = CASE) -> Counterexample:
    return counterexamples.signed("t", "unified", None, case, Verdict("oracle", kind, "wrong"))


def report(*events: Event, target: str = "t") -> RunReport:
    results = Results()
    ready = WorkerReady(0, Ready(target, "slug", "unified", "simulator"))
    for event in (Started(target, 1, 1, 0.0), ready, *events, Finished(0, 1.0)):
        results(event)
    return results.report()


FOUND = FailureFound(0, 0, found(), "a.json")


@pytest.mark.parametrize(
    ("events", "lost"),
    [
        ([failed("mismatch"), FOUND], 0),
        ([failed("mismatch")], 1),
        ([failed("mismatch"), FOUND, failed("nan")], 1),
        ([failed("mismatch"), FOUND, failed("nan"), FailureSeenAgain(0, "a.json")], 0),
        ([failed("mismatch"), FOUND, failed("nan"), FailureSeenAgain(0, "unknown.json")], 1),
        ([failed("mismatch", "crash"), FOUND], 1),
        ([failed("mismatch", phase="saved")], 1),
        ([failed("mismatch", phase="shrink"), failed("mismatch", phase="confirm")], 0),
        ([failed("crash"), CaseExcused(0, Verdict("oracle", "crash", "died"), judged=True)], 0),
        ([failed("crash"), CaseExcused(0, Verdict("oracle", "crash", "died"))], 1),
        ([failed("unwritten", case=AttentionCase((Sequence(1, 16),), dtypes=DTypes(out="float8_e4m3fn"))), FOUND], 0),
        ([failed("unwritten"), FOUND], 1),
    ],
)
def test_a_failing_case_without_a_row_fails_the_run_and_is_named(events: list[Event], lost: int) -> None:
    result = report(PASSED, *events)
    assert result.statistics.lost == lost
    assert bool(result.lost) == bool(lost)
    assert result.exit_status == (1 if lost or result.failures else 0)
    assert ("are in no row of the table" in "".join(result.problems)) == bool(lost)
    assert ("lost failures" in text_of(render(result.statistics))) == bool(lost)


def test_a_failure_that_becomes_another_keeps_its_account() -> None:
    also = FailureChanged(0, 1, found("crash"), "b.json", done=True, same_as="a.json")
    again = failed("crash"), FailureSeenAgain(0, "b.json")
    result = report(failed("mismatch", "crash"), FOUND, FailureFound(0, 1, found("crash"), "b.json"), also, *again)
    assert result.lost == ""
    assert [row.cases for row in result.failures] == [3]


def test_the_log_of_a_run_says_what_is_lost(tmp_path: Path) -> None:
    for name, events in (("one", (failed("mismatch"),)), ("none", (failed("mismatch"), FOUND))):
        with EventLog(tmp_path / name / "events.jsonl", 0) as log:
            for event in (Started("t", 1, 1, 0.0), PASSED, *events, Finished(0, 1.0)):
                log(event)
        assert report_of(tmp_path / name / "events.jsonl").statistics.lost == (name == "one")


def test_of_two_failures_that_ended_as_each_other_one_stays(tmp_path: Path) -> None:
    one, two = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    result = report(
        *(failed("mismatch"), FailureFound(0, 0, found(), one), FailureFound(1, 0, found(), two)),
        FailureChanged(0, 0, found(), one, done=True, same_as=two),
        FailureChanged(1, 0, found(), two, done=True, same_as=one),
        FailureSeenAgain(1, one),
    )
    (row,) = one_for_each_bug(result).failures
    assert (row.path, row.cases, result.exit_status) == (two, 3, 1)
    assert counterexamples.load(Path(two)) == row.counterexample, "its file is there again"


def test_a_name_that_is_used_again_is_another_failure() -> None:
    """A shard has learnt of a failure that has ended as a known one, and its file's name is that of a new one now."""
    known = msgspec.structs.replace(found(), status="known", reference="#7", because="waits")
    result = report(
        *(failed("mismatch"), FOUND, failed("mismatch"), FailureFound(0, 1, known, "known.json", saved=True)),
        FailureChanged(0, 0, found(), "a.json", done=True, same_as="known.json", same=(0, 1)),
        *(failed("crash"), FailureFound(0, 2, found("crash"), "a.json")),
        *(failed("mismatch"), FailureSeenAgain(1, "a.json", which=(0, 0))),
        *(failed("mismatch"), FailureFound(1, 0, found(), "b.json")),
        FailureChanged(1, 0, found(), "b.json", done=True, same_as="a.json", same=(0, 0)),
    )
    assert result.lost == ""
    assert {row.path: row.cases for row in result.failures} == {"known.json": 4, "a.json": 1}


@pytest.mark.parametrize("shrunk", [False, True])
def test_a_mark_covers_what_another_shard_found_of_the_same_bug(shrunk: bool) -> None:
    """Also where the marked file says less than the new one, which has been shrunk."""
    place = Verdict("oracle", "exception", "the target raised ValueError: no", site="k.py:3")
    new = msgspec.structs.replace(found(), verdict=place, confirmation="confirmed", shrunk=True)
    marked = msgspec.structs.replace(new, status="known", reference="#7", because="waits", shrunk=shrunk)
    events = FailureFound(0, 0, marked, "known.json", saved=True), FailureFound(1, 0, new, "new.json")
    left = one_for_each_bug(report(PASSED, *events))
    assert [(row.path, row.cases) for row in left.failures] == [("known.json", 2)]
    assert left.exit_status == 0


def of_contract(role: str) -> Counterexample:
    """Return the strides of an argument that are not read rightly."""
    trial = ContractTrial("stepped", role)
    verdict = Verdict("contract", "mismatch", f"{trial.subject}: a form is accepted")
    case = msgspec.structs.replace(CASE, contract=trial)
    return counterexamples.signed("t", "unified", None, case, verdict)


def test_a_row_of_a_contract_names_the_other_arguments_also_in_its_file(tmp_path: Path) -> None:
    one, two = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    lengths, table, sinks = map(of_contract, ("seq_lens", "block_table", "sinks"))
    for found_first, path in ((lengths, one), (sinks, two)):
        counterexamples.overwrite(found_first, Path(path))
    result = report(
        *(FailureFound(0, 0, lengths, one), FailureFound(0, 1, table, "gone.json"), FailureFound(1, 0, sinks, two)),
        FailureChanged(0, 1, table, "gone.json", done=True, same_as=one, same=(0, 0)),
        FailureChanged(0, 0, lengths, one, done=True),  # it is shrunk further
    )
    (row,) = one_for_each_bug(result).failures
    also = "contract strides of block_table", "contract strides of sinks"
    assert (row.path, row.cases, sorted(row.counterexample.also)) == (one, 3, [*also])
    assert counterexamples.load(Path(one)) == row.counterexample
    assert not Path(two).exists()
    assert cause(row).endswith("; also strides of block_table, strides of sinks")


def test_failures_without_files_are_counted_apart() -> None:
    crash = found("crash")
    result = report(
        *(FailureFound(0, 0, found(), ""), FailureFound(0, 1, crash, "")),
        *(FailureSeenAgain(0, name_of(0, 0, "")), FailureSeenAgain(0, name_of(0, 0, ""))),
    )
    assert [(row.kind, row.cases) for row in result.failures] == [("oracle (mismatch)", 3), ("oracle (crash)", 1)]
    assert result.exit_status == 2


def test_two_failures_that_were_only_seen_are_one_with_the_same_signature_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the files of the rows are written again
    other = found("nan", AttentionCase((Sequence(1, 16),), window=3))
    events = FOUND, FailureFound(0, 1, found(), "b.json"), FailureFound(0, 2, other, "c.json")
    assert [row.path for row in one_for_each_bug(report(*events)).failures] == ["a.json", "c.json"]


@pytest.mark.parametrize(
    ("judged", "refused", "unsupported", "status"),
    [(2, 325, 0, 2), (1, 9, 0, 0), (1, 10, 0, 2), (2, 0, 325, 2), (40, 300, 0, 0), (0, 5, 0, 2)],
)
def test_a_run_that_judged_too_little_is_not_green(judged: int, refused: int, unsupported: int, status: int) -> None:
    result = report(*[PASSED] * judged, *[REFUSED] * refused, *[UNSUPPORTED] * unsupported)
    assert (result.exit_status, bool(result.problems), result.ok) == (status, status == 2, status == 0)
    if judged and status:
        every = judged + refused + unsupported
        (problem,) = result.problems
        assert problem.startswith(f"only {judged} of {every} cases were judged, fewer than one in 10: ")
        assert ("t refused" in problem) == bool(refused)
        assert ("tl.histogram" in problem) == bool(unsupported)
        assert problem in json_document([result], 2)
        assert any(problem in line for line in run_documents.annotations_of_run([result]))
        assert "**Error:**" in run_documents.markdown_of_run([result], 2)


def test_a_run_that_judged_too_little_and_found_a_failure_has_a_failure() -> None:
    assert report(PASSED, *[REFUSED] * 50, failed("mismatch"), FOUND).exit_status == 1


def test_a_built_in_target_may_be_refused_by_the_compiler() -> None:
    assert report(PASSED, *[REFUSED] * 50, target="unified").exit_status == 0


@pytest.mark.parametrize(("cases", "words"), [(2, "fewer than 30 cases say too little"), (100, "at most 0.03 ")])
def test_few_cases_give_no_confidence(cases: int, words: str) -> None:
    assert words in text_of(outcome(report(*[PASSED] * cases)))


def test_what_was_not_followed_is_in_every_document(tmp_path: Path) -> None:
    seen = [FailureFound(0, number, found("crash"), f"{number}.json", followed=False) for number in range(1, 4)]
    result = report(failed("mismatch", "crash"), FOUND, *seen, FailureSeenAgain(0, "2.json"))
    assert result.exit_status == 1
    lines = text_of(failures_list(result.failures)).splitlines()
    (line,) = [line for line in lines if "seen, not followed, 3 files" in line]
    assert line.startswith("    4 cases, "), "those of all three"
    assert "| 4 |" in run_documents.markdown_of_run([result], 1)
    assert sum("seen%2C not followed" in line for line in run_documents.annotations_of_run([result])) == 3
    save_junit([result], tmp_path / "junit.xml")
    assert ElementTree.parse(tmp_path / "junit.xml").getroot()[0].get("failures") == "4"


def test_the_exit_status_of_several_targets_is_that_of_a_failing_case_first() -> None:
    passes, fails, unsaved = report(PASSED), report(FOUND), report(FailureFound(0, 0, found(), ""))
    broken, stopped = report(), report(PASSED, Finished(0, 1.0, stopped_by=2))
    assert exit_status([passes, fails, broken]) == 1
    assert exit_status([stopped, fails]) == 1
    assert exit_status([passes, broken]) == 2
    assert exit_status([passes, unsaved]) == 2
    assert exit_status([passes, stopped]) == 130
    assert exit_status([passes, passes]) == 0


def in_window(keys: int, **fields: object) -> Counterexample:
    case = AttentionCase((Sequence(1, keys),), window=4)
    fields = {"confirmation": "confirmed", "trigger": ("sliding window",), "shrunk": True, **fields}
    return msgspec.structs.replace(found("mismatch", case), **fields)


def test_two_runs_at_the_same_time_keep_one_file_of_a_bug(tmp_path: Path) -> None:
    ours, theirs = in_window(16), in_window(8)
    paths = [str(counterexamples.save(each, tmp_path)) for each in (ours, theirs)]
    results = [report(FailureFound(0, 0, each, path)) for each, path in zip((ours, theirs), paths, strict=True)]
    both = [united_with_other_runs(result, 0.0) for result in results]
    assert [[row.path for row in result.failures] for result in both] == [[paths[1]], [paths[1]]]
    assert [path.name for path in tmp_path.glob("*.json")] == [Path(paths[1]).name]
    assert [result.exit_status for result in both] == [1, 1]
    assert both[0].statistics.counterexamples == (paths[1],)
    assert both[0].notes == (f"another run saved the same bug in a simpler case: {paths[1]}",)


@pytest.mark.parametrize(
    "theirs",
    [
        in_window(8, status="known", reference="#1", because="waits"),
        in_window(8, confirmation="unconfirmed"),
        in_window(8, target="another"),
        msgspec.structs.replace(in_window(8), verdict=Verdict("oracle", "crash", "died")),
        in_window(20),
    ],
)
def test_a_file_of_another_run_that_is_no_simpler_case_of_the_bug_changes_nothing(
    theirs: Counterexample, tmp_path: Path
) -> None:
    path, other = (counterexamples.save(each, tmp_path) for each in (in_window(16), theirs))
    result = report(FailureFound(0, 0, in_window(16), str(path)))
    assert united_with_other_runs(result, 0.0) == result
    assert path.exists()
    assert other.exists()


def test_an_old_file_is_not_of_another_run(tmp_path: Path) -> None:
    path, other = (counterexamples.save(each, tmp_path) for each in (in_window(16), in_window(8)))
    result = report(FailureFound(0, 0, in_window(16), str(path)))
    assert united_with_other_runs(result, other.stat().st_mtime + 1.0) == result


def test_a_failure_names_every_line_that_its_smallest_case_shows() -> None:
    verdict = Verdict("sanitizers", "out_of_bounds", "out-of-bounds store at k.py:9", site="k.py:9")
    example = counterexamples.signed("t", "unified", None, CASE, verdict)
    example = msgspec.structs.replace(example, also=("sanitizer k.py:3", "output"))
    lines = [
        line.strip()
        for line in text_of(failures_list(report(FailureFound(0, 0, example, "a.json")).failures)).splitlines()
    ]
    assert lines[3:5] == ["at k.py:9", "also at k.py:3"]
