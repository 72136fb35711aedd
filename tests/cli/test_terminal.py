"""What a run prints while it goes on and at its end, and that no text of a target is read as markup or escapes."""

import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console
from rich.text import Text

from fuzz_attn import counterexamples
from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.counterexamples import Counterexample, Elsewhere, Environment, signed
from fuzz_attn.engine.events import (
    CaseJudged,
    Event,
    FailureChanged,
    FailureFound,
    FailureSeenAgain,
    Finished,
    Note,
    SavedPassed,
    Started,
    WorkerReady,
)
from fuzz_attn.engine.listeners.results import FoundFailure, Results, RunReport, one_for_each_bug
from fuzz_attn.engine.listeners.statistics import CountedRefusal, Statistics
from fuzz_attn.engine.orders import Order, Ready
from fuzz_attn.errors import OutputError
from fuzz_attn.oracle.verdict import Refusal, Verdict
from fuzz_attn.report import run_documents
from fuzz_attn.report import summary as terminal_module
from fuzz_attn.report.failure import certainty, command_for
from fuzz_attn.report.outcome import failures_list, outcome, status_of
from fuzz_attn.report.printing import safe, show, text_of
from fuzz_attn.report.run_documents import save_junit
from fuzz_attn.report.summary import Terminal

HOSTILE = "[bold]wrong[/] \x1b]0;title\x07 \x1b[2J :smile: \r\x9b31m"
SHOWN = r"[bold]wrong[/] \x1b]0;title\x07 \x1b[2J :smile: \x0d\x9b31m"
ON_CUDA = Environment("cuda", (), {})
CASE = AttentionCase(sequences=(Sequence(2, 3),), window=2)


def failure(message: str = "2 of 8 elements wrong") -> Counterexample:
    return signed("mine.py:attend", "unified", None, CASE, Verdict("oracle", "mismatch", message, where="tail_rows"))


def shrunk(found: Counterexample) -> Counterexample:
    return msgspec.structs.replace(found, confirmation="confirmed", shrunk=True)


def events(message: str = "2 of 8 elements wrong") -> list[Event]:
    return [
        Started("mine.py:attend", 9, 1, 0.0, max_time=60.0),
        WorkerReady(0, Ready("mine.py:attend", "mine", "unified", "simulator")),
        CaseJudged(0, "search", Order(CASE), (Verdict("oracle", ratio=0.5),), 0.01),
        FailureFound(0, 0, failure(message), "saved/a.json", 1.25),
        FailureChanged(0, 0, shrunk(failure(message)), "saved/b.json", done=True),
        FailureSeenAgain(0, "saved/b.json"),
        FailureFound(0, 1, failure(message), "saved/c.json", 2.5),
        Note(0, message),
        Finished(0, 10.0),
    ]


def printed(console: Console, message: str = "2 of 8 elements wrong") -> str:
    with Terminal(console) as terminal:
        for event in events(message):
            terminal(event)
        terminal.tick()
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_rows_appear_as_failures_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_module, "PIPE_SECONDS", 0.0)
    lines = printed(Console(file=io.StringIO(), width=60)).splitlines()
    assert lines[0] == "Fuzzing mine.py:attend with seed 9, 1 worker"
    assert [line[10:].rstrip() for line in lines[1:-1]] == [
        "found  oracle (mismatch): 2 of 8 elements wrong",
        "shrunk saved/b.json",
        "found  oracle (mismatch): 2 of 8 elements wrong",
        "note   2 of 8 elements wrong",
    ]
    assert lines[-1].startswith("1 case, 0.1 cases/s, 1 compile key, 2 failures, ")
    assert lines[-1].endswith(" s left")


def test_progress_shows_the_coverage_gained_since_the_line_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_module, "PIPE_SECONDS", 0.0)
    masks = [Mask("k.py", line, "k", "load", 0, "m", True, ("all true", "mixed")) for line in (1, 2)]
    console = Console(file=io.StringIO(), width=200)
    with Terminal(console) as terminal:
        for event in events()[:2]:
            terminal(event)
        for found in (masks[:1], masks, []):
            passed = (Verdict("oracle", ratio=0.5),)
            terminal(CaseJudged(0, "search", Order(CASE), passed, 0.01, tuple(found)))
            terminal.tick()
    assert isinstance(console.file, io.StringIO)
    words = re.findall(r"compile keys?, (.*?), 0 failures", console.file.getvalue())
    assert words == ["2 mask outcomes (+2)", "4 mask outcomes (+2)", "4 mask outcomes (+0)"]


def test_progress_waits_for_ten_seconds_where_the_output_is_no_terminal() -> None:
    assert "cases/s" not in printed(Console(file=io.StringIO(), width=60))


def test_a_terminal_shows_the_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_module, "FRAME_SECONDS", 0.0)
    text = printed(Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None))
    assert "1 case, 0.1 cases/s" in text
    assert "window 100%" in text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_row_never_cuts_the_file_and_line_that_it_ends_with(is_terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=is_terminal, color_system=None)
    site = f"/{'a_long_folder/' * 8}attention.py:432"
    assert f"out-of-bounds load in kernel at {site}\n" in printed(console, f"out-of-bounds load in kernel at {site}")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_message_is_neither_markup_nor_an_escape_sequence(is_terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=is_terminal, color_system=None)
    text = printed(console, HOSTILE)
    assert f"found  oracle (mismatch): {SHOWN}" in text
    assert "\x1b]0" not in text
    assert "\x07" not in text
    assert "\x9b" not in text


def test_the_verdict_stands_above_the_failures_with_their_commands() -> None:
    results = Results()
    for event in events():
        results(event)
    report = results.report()
    verdict, *lines = text_of(outcome(report), 130).splitlines()
    assert verdict == f"2 failures in {report.cases} case{'s' * (report.cases != 1)} of mine.py:attend"
    case = "oracle (mismatch), tail rows: 1 sequence, 2 query tokens, 5 keys, window"
    first, second = ([line for line in lines if mark in line] for mark in (" 1  ", " 2  "))
    assert (first, second) == ([" 1  2 of 8 elements wrong"], [" 2  2 of 8 elements wrong"])
    assert lines.count(f"    {case}") == 2
    assert "    2 cases, the first after 1.2 s; open" in lines
    assert "    1 case, the first after 2.5 s; open, unconfirmed" in lines
    for found in report.failures:
        for command in ("explain", "replay"):
            assert f"    {command_for(command, Path(found.path), found.counterexample)}" in lines


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_failure_is_named_by_its_cause_and_its_line_is_never_wrapped(width: int) -> None:
    site = "/a/rather/long/folder/of/kernels/attention.py:432"
    read = Verdict("sanitizers", "out_of_bounds", f"out-of-bounds load in kernel at {site}: loads element 1", site=site)
    unexplained = signed("mine.py:attend", "unified", None, CASE, read)
    explained = msgspec.structs.replace(failure(), verdict=msgspec.structs.replace(read, explanation="key 3 is lost"))
    found = [FoundFailure(each, "a.json", 1.0) for each in (unexplained, explained)]
    lines = text_of(failures_list(found), width).splitlines()
    assert lines.count(f"    at {site}") == 2
    text = " ".join(" ".join(lines).split())
    assert "1 out-of-bounds load in kernel: loads element 1 sanitizers" in text
    assert "2 key 3 is lost sanitizers" in text


@pytest.mark.parametrize(
    ("cases", "refused", "words"),
    [
        (100, 0, "No failure in 100 cases of t: at most 0.03 failures per case with 95% confidence (3/n)"),
        (2, 0, "No failure in 2 cases of t: fewer than 30 cases say too little about how often one fails"),
        (2, 90, "Mostly refused: 90 of 92 cases, no failure in 2 cases of t"),
        (0, 90, "Nothing judged of t: 90 cases refused"),
        (0, 0, "Nothing judged of t"),
    ],
)
def test_the_verdict_says_what_no_failure_means(cases: int, refused: int, words: str) -> None:
    refusals = (CountedRefusal(Refusal("host", "ValueError", "no"), refused),) if refused else ()
    assert text_of(outcome(RunReport(Statistics("t", cases=cases, refusals=refusals)))) == words


def test_the_verdict_of_a_run_that_an_error_cut_short_is_no_success() -> None:
    report = RunReport(Statistics("t", cases=216), errors=("a case could not be made",))
    assert text_of(outcome(report)) == "Cut short by an error: no failure in 216 cases of t"


KNOWN = {"status": "known", "reference": "#7", "because": "waits for a release"}


def known_failure() -> Counterexample:
    return msgspec.structs.replace(failure(), confirmation="confirmed", shrunk=True, **KNOWN)


def report_after(*later: Event) -> RunReport:
    results = Results()
    for event in (*events()[:3], *later, Finished(0, 10.0)):
        results(event)
    return results.report()


def test_a_known_failure_does_not_fail_a_run(tmp_path: Path) -> None:
    known = (
        FailureFound(0, 0, known_failure(), "saved/a.json"),
        FailureChanged(0, 0, known_failure(), "saved/a.json", True),
    )
    report = report_after(*known, FailureSeenAgain(0, "saved/a.json"))
    assert (report.exit_status, report.ok, [found.cases for found in report.failures]) == (0, True, [2])
    assert (report.statistics.counterexamples, report.statistics.known) == ((), ("saved/a.json",))
    assert text_of(failures_list(report.failures), 130).splitlines()[-1].endswith("; known")
    save_junit([report], tmp_path / "junit.xml")
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["1", "0", "1"]
    worse = report_after(*known, FailureFound(0, 1, failure(), "saved/b.json"))
    assert worse.exit_status == 1


@pytest.mark.parametrize(
    ("kind", "confirmation", "fails"),
    [
        ("timeout", "unconfirmed", False),
        ("timeout", "confirmed", True),
        ("crash", "unconfirmed", True),
    ],
)
def test_a_launch_that_was_slow_once_does_not_fail_a_run(
    tmp_path: Path, kind: str, confirmation: str, fails: bool
) -> None:
    verdict = Verdict("oracle", kind, "the launch did not end within 5 s")  # type: ignore[arg-type] # parametrized
    found = msgspec.structs.replace(failure(), verdict=verdict, confirmation=confirmation)
    report = report_after(FailureFound(0, 0, found, "saved/a.json"))
    assert report.exit_status == int(fails)
    save_junit([report], tmp_path / "junit.xml")
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert [suite.get(name) for name in ("failures", "skipped")] == [str(int(fails)), str(int(not fails))]
    assert next(run_documents.annotations_of_run([report])).startswith("::error" if fails else "::warning")
    assert ("this does not fail the run" in certainty(found)) is (not fails)


@pytest.mark.parametrize(
    ("found", "notes"),
    [
        (known_failure(), ("an unexpected pass: the known failure a.json (#7) does not fail any more",)),
        (failure(), ("an unexpected pass: a.json does not fail any more",)),
        (msgspec.structs.replace(failure(), status="fixed"), ()),
    ],
)
def test_a_saved_failure_that_passes_is_a_note(found: Counterexample, notes: tuple[str, ...]) -> None:
    report = report_after(SavedPassed(0, found, "a.json"))
    assert report.notes == tuple(f"{note}; mark it as fixed if the bug is" for note in notes)
    assert report.exit_status == 0


@pytest.mark.parametrize(
    ("fields", "done", "status"),
    [
        ({"status": "fixed", "confirmation": "confirmed", "shrunk": True}, True, "regressed"),
        ({"confirmation": "confirmed", "shrunk": True}, True, "open"),
        ({"confirmation": "confirmed", "shrunk": False}, True, "open, not shrunk fully"),
        ({"confirmation": "confirmed", "shrunk": True}, False, "open, not shrunk fully"),
        ({"confirmation": "state"}, True, "open, state"),
        ({"confirmation": "flaky", "failed": 3, "tries": 12}, True, "open, flaky (3 of 12)"),
    ],
)
def test_the_status_says_how_sure_a_failure_is(fields: dict[str, object], done: bool, status: str) -> None:
    found = msgspec.structs.replace(failure(), **fields)
    assert status_of(FoundFailure(found, "a.json", 1.0, done=done)) == status


@pytest.mark.parametrize(
    ("shrunk_case", "status"), [("fails", "open"), ("larger", "open, smaller cases pass on cuda"), ("unknown", "open")]
)
def test_the_status_says_where_smaller_cases_pass(shrunk_case: Any, status: str) -> None:
    there = Elsewhere("simulator", outcome="fails", shrunk_case=shrunk_case)
    found = msgspec.structs.replace(shrunk(failure()), elsewhere=there, environment=ON_CUDA)
    assert status_of(FoundFailure(found, "a.json", 1.0, done=True)) == status


def test_control_characters_are_shown() -> None:
    assert safe(HOSTILE) == SHOWN
    assert safe("a\tb\nc é ✓ 数") == "a\tb\nc é ✓ 数"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb\u2066c\u200fd", r"a\u202eb\u2066c\u200fd"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("a\u2028::error::b", r"a\u2028::error::b"),
        ("tag \U000e0041 half \ud800", r"tag \U000e0041 half \ud800"),
        ("::error::owned", r"\x3a:error::owned"),
        ("a\n \t\xa0::set-output name=x::y\nb", "a\n \t\xa0\\x3a:set-output name=x::y\nb"),
        ("a\r\n::stop-commands::x", "a\\x0d\n\\x3a:stop-commands::x"),
        ("in the middle ##[error]owned", r"in the middle #\x23[error]owned"),
        ("test.py::test_one #[x] a::b", "test.py::test_one #[x] a::b"),
    ],
)
def test_a_text_of_others_is_seen_as_it_is_and_commands_nothing(text: str, shown: str) -> None:
    assert safe(text) == shown


def test_a_line_that_is_wrapped_is_no_command() -> None:
    for width in range(20, 40):
        lines = text_of(Text("a b c d e f g h i j ::error::owned ##[error]x"), width).splitlines()
        assert not [line for line in lines if line.lstrip().startswith("::")]


def test_a_line_on_a_terminal_is_no_command_either() -> None:
    """A workflow that sets FORCE_COLOR has a terminal, as far as rich can tell."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=30, no_color=True)
    show(console, Text("a b c d e f g h i j k l m n o ::error::owned ##[error]x\n  ::warning::y"))
    assert r"\x3a:warning::y" in out.getvalue()
    assert "##[" not in out.getvalue()
    assert not [line for line in out.getvalue().splitlines() if line.lstrip().startswith("::")]


def test_junit_holds_any_message(tmp_path: Path) -> None:
    results = Results()
    for event in events(HOSTILE + " <&> \ud800"):
        results(event)
    save_junit([results.report()], tmp_path / "new" / "junit.xml")
    root = ElementTree.parse(tmp_path / "new" / "junit.xml").getroot()
    (message, _) = (found.attrib["message"] for found in root.iter("failure"))
    assert message == rf"{SHOWN} <&> \ud800"


def test_junit_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file/junit\.xml: cannot be written: "):
        save_junit([], tmp_path / "file" / "junit.xml")


def test_a_file_that_is_no_counterexample_is_never_deleted(tmp_path: Path) -> None:
    """A log of somebody else may name any file as that of a failure."""
    paths = [tmp_path / name for name in ("a.json", "precious.json")]
    found = msgspec.structs.replace(failure(), confirmation="confirmed", shrunk=True, trigger=("window",))
    for path in paths:
        path.write_text('{"precious": true}')
    twice = (FailureFound(0, number, found, str(path)) for number, path in enumerate(paths))
    assert len(one_for_each_bug(report_after(*twice)).failures) == 1
    assert all(path.exists() for path in paths)


@pytest.mark.parametrize("saved", [False, True])
def test_one_bug_in_two_files_keeps_those_from_before_the_run(saved: bool, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    found = msgspec.structs.replace(failure(), confirmation="confirmed", shrunk=True, trigger=("window",))
    for path in paths:
        counterexamples.overwrite(found, path)
    twice = (FailureFound(0, number, found, str(path), saved=saved) for number, path in enumerate(paths))
    report = one_for_each_bug(report_after(*twice))
    assert [path.exists() for path in paths] == [True, saved]
    assert [Path(found.path) for found in report.failures] == (paths if saved else paths[:1])
    assert sorted(report.statistics.counterexamples) == [found.path for found in report.failures]
