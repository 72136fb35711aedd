"""The page of a run: every part is there, nothing of a target becomes markup, and nothing is loaded."""

import base64
import dataclasses
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence as Tokens
from fuzz_attn.engine.events import Event, Finished
from fuzz_attn.errors import ReportError
from fuzz_attn.operations.cache_write.write_case import WriteCase
from fuzz_attn.operations.merge_states.state_case import StateCase
from fuzz_attn.operations.registry import operation_of
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.report.page.run_log import read_run
from fuzz_attn.report.page.run_page import run_page, save, verdict_in_words
from fuzz_attn.report.page.sections import size_tables
from fuzz_attn.report.page.sources import source_files

Events = Callable[..., list[Event]]
Log = Callable[..., Path]
TEXTS: dict[str, str] = {}
PARTS = (
    "Counters",
    "Refusals",
    "Features and pairs",
    "Masks and branches",
    "Errors and bounds",
    "Lengths and sizes",
    "Speed and time",
    "Compile keys",
    "Environment",
)
"""The counters, in their order, behind everything else."""


@pytest.fixture
def text(events: Events, log: Log) -> Callable[..., str]:
    """Return a function that makes the page of a run with these events, once: drawing takes a second."""

    def make(**changes: Any) -> str:
        name = repr(changes)
        if name not in TEXTS:
            TEXTS[name] = run_page(read_run(log(events(**changes))), 0.0)
        return TEXTS[name]

    return make


@pytest.fixture
def made(text: Callable[..., str], page: Any) -> Callable[..., Any]:
    """Return a function that reads the page of a run with these events."""
    return lambda **changes: page(text(**changes))


def test_every_part_is_there(made: Callable[..., Any]) -> None:
    shown = made(failures=1)
    assert [words for level, words in shown.headings if level == 2] == [
        "Failures",
        "Refused",
        "Covered",
        "1. Window: words",
        "Details",
    ]
    text = " ".join(shown.text.split())
    places = [text.rindex(words) for words in PARTS]
    assert places == sorted(places)
    for words in (
        "1 failure in 3 cases",
        "oracle (mismatch), tail rows",
        "1 case, the first after 1.2 s · Confirmed in a fresh process",
        "Head 0, sequence 0. Query 0 gives key 2 a weight of 0.25 where 0 is right. 1 other weight is wrong too.",
        "2 of 8 elements are wrong. The worst is NaN where -0.18 is right, give or take 1.5e-07.",
        "12.5 times the bound",
        "replay saved/0.json",
        "explain saved/0.json",
        "export saved/0.json",
        "causal, window of 2 keys",
        "-0.18",
        "sliding window (window) 1 33% 0 1",
        "pairs of features were drawn together. Never drawn at all: alibi,",
        "store in kernel: never all false and never mixed",
        "1 of 2 masks seen all true, all false and mixed",
        "judging drawn cases",
        "torch words",
        "host",
    ):
        assert words in text, words


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_headings_and_landmarks_form_an_outline(made: Callable[..., Any], failures: int) -> None:
    shown = made(failures=failures)
    levels = [level for level, _ in shown.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for landmark in ("header", "nav", "main", "footer"):
        assert len(shown.all(landmark)) == 1
    assert shown.unclosed == []


def test_references_lead_to_elements(made: Callable[..., Any]) -> None:
    shown = made(failures=2)
    ids = Counter(attributes["id"] for _, attributes in shown.elements if "id" in attributes)
    assert {name for name, times in ids.items() if times > 1} == set()
    links = {attributes["href"] for attributes in shown.all("a")}
    assert {link.removeprefix("#") for link in links} <= set(ids), "and no other page is linked, as none is there"
    assert {attributes["data-failure"] for attributes in shown.all("li") if "data-failure" in attributes} <= set(ids)
    labels = [attributes["aria-labelledby"] for _, attributes in shown.elements if "aria-labelledby" in attributes]
    assert set(labels) <= set(ids)


def test_pictures_have_words_and_tables_have_captions(made: Callable[..., Any]) -> None:
    shown = made(failures=1)
    pictures = [attributes for _, attributes in shown.elements if attributes.get("role") == "img"]
    assert len(pictures) >= 4
    assert all(attributes["aria-label"].strip() for attributes in pictures)
    drawings = [attributes for tag, attributes in shown.elements if tag == "svg"]
    small = sum("aria-hidden" in attributes for attributes in drawings)
    assert small == 1, "the words beside a thumbnail say what it shows"
    assert sum("aria-label" in attributes for attributes in drawings) == len(drawings) - small
    assert len(shown.all("caption")) == len(shown.all("table"))
    assert all(attributes.get("scope") in {"row", "col"} for attributes in shown.all("th"))


def test_nothing_of_a_target_is_markup(made: Callable[..., Any], hostile: str) -> None:
    tags = {tag for tag, _ in made(failures=1).elements}
    shown = made(text=hostile, target=f"{hostile}:f")
    assert {tag for tag, _ in shown.elements} == tags
    assert sum(tag == "script" for tag, _ in shown.elements) == 1, "the page's own"
    assert "img" not in tags
    assert "\x1b" not in shown.text
    assert "{{ 7 * 7 }}" in shown.text
    assert "<script>alert(1)</script>" in shown.text
    handlers = [name for _, attributes in shown.elements for name in attributes if name.startswith("on")]
    assert handlers == []


def test_nothing_is_loaded(text: Callable[..., str]) -> None:
    page = text(failures=2)
    assert re.findall(r"(?:https?:)?//[a-z]", page) == []
    assert re.findall(r"url\((?!#)|@import|@font-face|<(?:script \w|link|img|iframe|object|base|form)\b", page) == []
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_the_page_of_a_log_is_always_the_same(events: Events, log: Log) -> None:
    folder = log(events())
    assert run_page(read_run(folder), 0.0) == run_page(read_run(folder), 0.0)


def test_a_log_without_an_end_says_so(events: Events, log: Log, page: Any) -> None:
    shown = page(run_page(read_run(log(events(failures=0)[:6])), 0.0))
    assert "the run still goes on, or was killed" in shown.text
    assert "Lengths and sizes: not recorded in this log." in shown.text
    assert "Speed and time: not recorded in this log." in shown.text


def test_the_page_of_several_targets(events: Events, log: Log, page: Any, tmp_path: Path) -> None:
    for target in ("a:f", "b:f"):
        log(events(target=target), f"20260101-000000-1/{target[0]}")
    shown = page(run_page(read_run(tmp_path / "runs" / "20260101-000000-1"), 0.0))
    assert [words for level, words in shown.headings if level < 3] == ["2 targets", "a:f", "b:f"]
    links = [attributes["href"] for attributes in shown.all("a")]
    assert {"#t0-failure-1", "#t1-failure-1", "#t1-target"} <= set(links)
    assert "a:f 1 failure in 3 cases b:f 1 failure in 3 cases" in " ".join(shown.text.split())
    ids = Counter(attributes["id"] for _, attributes in shown.elements if "id" in attributes)
    assert max(ids.values()) == 1


def test_the_logs_of_shards_are_one_target(events: Events, log: Log, tmp_path: Path) -> None:
    folder = log(events(failures=0))
    (folder / "events.jsonl").rename(folder / "events-0.jsonl")
    other = log(events(failures=0), "20260101-000000-2")
    (other / "events.jsonl").rename(folder / "events-1.jsonl")
    (run,) = read_run(folder)
    assert run.statistics.cases == 6
    assert run.distributions is not None
    assert run.distributions.paths["3d"]["3d"] == 4
    assert run.distributions.seconds["shrink"] == 0.5
    assert run.finished


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"holds no events\*\.jsonl, so it is no folder of a run"),
        (b'{"event":"no_such_event"}\n', "is no log of a run by this version"),
        (b"\xff\xfe\n", "is no log of a run by this version"),
    ],
)
def test_a_folder_without_a_log_is_one_error(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "events.jsonl").write_bytes(content)
    with pytest.raises(ReportError, match=message):
        read_run(tmp_path)


def test_a_source_is_shown_only_where_it_is_what_was_run(events: Events, log: Log, page: Any, kernel: Path) -> None:
    folder = log(events())
    kernel.write_text("secret = 1\n" + kernel.read_text())
    text = page(run_page(read_run(folder), 0.0)).text
    assert "The file has changed since the run." in text
    assert "secret" not in text
    assert "tl.store(a, x, mask=m)" in text
    kernel.unlink()
    assert "The file cannot be read here." in page(run_page(read_run(folder), 0.0)).text


def test_a_log_that_names_a_blank_line_shows_no_source(tmp_path: Path) -> None:
    """Somebody who sends a log must know a line of a file to have it shown."""
    file = tmp_path / "secret.py"
    file.write_text("def f():\n    secret = 1\n\n    return secret\n")
    blank = Mask(str(file), 3, "kernel", "load", 0, "  ", True, ())
    (shown,) = source_files([blank], "t")
    assert shown.problem == "The file has changed since the run."
    assert not any("secret" in line.text for line in shown.lines)


def test_a_log_that_names_line_0_has_a_page(tmp_path: Path) -> None:
    nowhere = Mask(str(tmp_path / "gone.py"), 0, "kernel", "load", 0, "x = 1", True, ())
    (shown,) = source_files([nowhere], "t")
    assert [line.text for line in shown.lines] == ["x = 1"]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_log_that_is_no_file_is_one_error(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "events.jsonl")
    with pytest.raises(ReportError, match=r"events\.jsonl: cannot be read: is no file"):
        read_run(tmp_path)


def test_a_page_replaces_a_link_and_does_not_follow_it(tmp_path: Path) -> None:
    """The folder of a run may come from somebody else."""
    precious, path = tmp_path / "precious", tmp_path / "report.html"
    precious.write_text("precious")
    path.symlink_to(precious)
    save("<p>", path)
    assert (path.read_text(), precious.read_text()) == ("<p>", "precious")


def test_many_failures_stay_small(events: Events, log: Log) -> None:
    text = run_page(read_run(log(events(failures=150, text="x" * 20_000))), 0.0)
    assert len(text) < 5e6
    assert "50 more failures are not shown" in text
    assert text.count("<article") == 100


def test_a_launch_that_was_slow_once_is_no_failure_of_the_page(events: Events, log: Log) -> None:
    (run,) = read_run(log(events(failures=1)))
    verdict = Verdict("oracle", "timeout", "the launch did not end within 5 s")
    (found,) = run.report.failures
    doubtful = replace(found, counterexample=replace(found.counterexample, verdict=verdict, confirmation="unconfirmed"))
    run = dataclasses.replace(run, report=replace(run.report, failures=(doubtful,), errors=()))
    sentence = verdict_in_words(run)
    assert (sentence.mark, sentence.words) == ("good", "No failure, and 1 unconfirmed timeout in 3 cases")


def test_only_the_last_event_ends_a_run(events: Events, log: Log) -> None:
    (run,) = read_run(log([event for event in events() if not isinstance(event, Finished)]))
    assert not run.finished


def test_the_notes_of_a_log_are_decoded_as_they_were(events: Events, log: Log) -> None:
    (run,) = read_run(log(events(text="a note")))
    assert run.report.notes == ("a note",)
    assert run.deaths == ("a note",)
    assert [event.path for event in run.passed] == ["saved/old.json"]
    assert msgspec.json.encode(run.started)


@pytest.mark.parametrize(
    "case", [AttentionCase((Tokens(1, 3),)), StateCase(), WriteCase()], ids=["attention", "merge", "write"]
)
def test_types_of_each_operation_have_a_title(case: Any) -> None:
    types = {what: {name: 1} for what, name in operation_of(case).types_of(case)}
    log: Any = SimpleNamespace(distributions=SimpleNamespace(sizes={}, types=types))
    assert len(list(size_tables(log))) == len(types) > 0
