"""The page of several runs, and the command that writes pages."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz_attn.cli.main import main
from fuzz_attn.engine.events import CaseJudged, Event, FailureChanged, FailureFound, SavedPassed
from fuzz_attn.report.page import trend as trend_module
from fuzz_attn.report.page.charts import ticks
from fuzz_attn.report.page.run_log import read_run, run_before, runs_in
from fuzz_attn.report.page.trend import trend_page

Events = Callable[..., list[Event]]
Log = Callable[..., Path]


def with_status(events: list[Event], status: str) -> list[Event]:
    """Return the events of a run whose failures have another status in their files."""
    known = {"status": status, "reference": "#7", "because": "waits"}
    return [
        msgspec.structs.replace(event, counterexample=msgspec.structs.replace(event.counterexample, **known))
        if isinstance(event, FailureFound | FailureChanged)
        else event
        for event in events
    ]


@pytest.fixture
def runs(events: Events, log: Log) -> list[Path]:
    """Return the folders of three runs of one target: a failure is open, then known, then it passes."""
    found = next(event.counterexample for event in events() if isinstance(event, FailureFound))
    last = [*events(failures=0, time=3e9)]
    last.insert(2, SavedPassed(0, found, "saved/0.json"))
    parts = (events(time=1e9), with_status(events(time=2e9), "known"), last)
    return [log(each, f"2026010{number}-000000-1") for number, each in enumerate(parts, 1)]


def shown(page: Any, folders: list[Path], place: Path) -> Any:
    return page(trend_page([log for folder in folders for log in read_run(folder)], place, 0.0))


def test_each_run_is_a_row_and_the_newest_is_first(runs: list[Path], page: Any, tmp_path: Path) -> None:
    trend = shown(page, runs[::-1], tmp_path)
    words = " ".join(trend.text.split())
    rows = [
        "No failure in 3 cases 3 0.3 0 0 0 2 1 of 2 0 of ",
        "No failure, and 1 known failure in 3 cases 3 0.3 0 1 0 1 1 of 2 0 of ",
        "1 failure in 3 cases 3 0.3 1 0 0 1 1 of 2 0 of ",
    ]
    places = [words.find(row) for row in rows]
    assert -1 not in places
    assert places == sorted(places)
    assert "Passes now: Window: words." in words
    assert "Window: words passes known open" in words


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ([2, 0], "Fails again: Window: words."),
        ([3, 0], "New: Window: words."),
        ([3, 4], "Regressed: Window: words."),
        ([0, 3], "Not seen again: Window: words."),
        ([0, 1], "The last run shows the same failures as the one before, and no other."),
        ([2, 2], "The last two runs show no failure."),
        ([2], "There is one run, so nothing to compare it with yet."),
    ],
)
def test_what_the_last_run_changed(order: list[int], sentence: str, runs: list[Path], events: Events, log: Log) -> None:
    nothing, fixed = events(failures=0), with_status(events(), "fixed")
    runs += [log(each, f"2026010{number}-000000-1") for number, each in enumerate((nothing, fixed), 4)]
    logs = [log for index in order for log in read_run(runs[index])]
    assert sentence in trend_module._changes(logs)


def test_a_fixed_failure_that_fails_has_regressed(events: Events, log: Log) -> None:
    (run,) = read_run(log(with_status(events(), "fixed")))
    assert trend_module.numbers_of(run) == {"open": 0, "known": 0, "regressed": 1, "fixed": 1}


def test_pages_are_linked_by_relative_addresses(runs: list[Path], page: Any, tmp_path: Path) -> None:
    links = [attributes["href"] for attributes in shown(page, runs, tmp_path).all("a")]
    pages = [f"runs/2026010{number}-000000-1/report.html" for number in (3, 2, 1)]
    of_runs = [link for link in links if link.endswith(".html")]
    assert of_runs == pages, "a row for each"
    assert f"{pages[0]}#covered" in links, "what to look at next"
    of_failures = [link for link in links if "#failure" in link]
    assert of_failures == [f"{page}#failure-1" for page in pages[1:]], "each state that has a section leads to it"


def test_nothing_of_a_target_is_markup(events: Events, log: Log, page: Any, hostile: str, tmp_path: Path) -> None:
    folders = [log(events(text=hostile, target=hostile), f"2026010{number}-000000-1") for number in (1, 2)]
    tags = {tag for tag, _ in shown(page, folders, tmp_path).elements}
    assert not tags & {"img", "iframe", "link"}
    assert [tag for tag, _ in shown(page, folders, tmp_path).elements].count("script") == 1


def test_a_folder_of_runs_stands_for_all_of_them(runs: list[Path]) -> None:
    assert list(runs_in([runs[0].parent])) == runs
    assert list(runs_in([runs[1]])) == [runs[1]]


@pytest.mark.parametrize(
    ("failures", "sentence"),
    [
        (0, "None of the 6 cases of these runs failed."),
        (None, "No case was judged in any of these runs, so they say nothing of the target."),
    ],
)
def test_nothing_is_said_truly(failures: int | None, sentence: str, events: Events, log: Log, page: Any) -> None:
    nothing = [event for event in events(failures=0) if not isinstance(event, CaseJudged)]
    folders = [log(nothing if failures is None else events(failures=0), f"2026010{day}-000000-1") for day in (1, 2)]
    text = shown(page, folders, folders[0].parent).text
    assert sentence in text
    assert ("Nothing judged" in text) is (failures is None)


@pytest.mark.parametrize("largest", [0, 0.5, 1, 2, 3, 7, 10, 11, 99, 101, 12345, 10**9])
def test_axes_have_few_whole_numbers(largest: float) -> None:
    numbers = ticks(largest)
    assert all(number == int(number) for number in numbers)
    assert (numbers[0], numbers[-1] >= largest, 2 <= len(numbers) <= 7) == (0, True, True)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs the command line in a new folder; pages are short, as drawing takes seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fuzz_attn.report.page.run_page.run_page", lambda logs, made, **_: f"page of {logs[0].target}")

    def called(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments)

    return called


def test_the_page_lies_in_the_run_folder(call: Callable[..., Result], runs: list[Path]) -> None:
    result = call("report", str(runs[0]))
    assert (result.exit_code, result.stdout) == (0, f"Written  {runs[0]}/report.html\n")
    assert (runs[0] / "report.html").read_text() == "page of mine.py:attend"
    assert call("report", str(runs[0]), "--out", "new/page.html").exit_code == 0
    assert Path("new/page.html").read_text() == "page of mine.py:attend"


def test_the_trend_lies_beside_the_run_folders(call: Callable[..., Result], runs: list[Path]) -> None:
    result = call("report", str(runs[0].parent))
    assert result.stdout.splitlines() == [f"Written  {run}/report.html" for run in runs] + [
        f"Written  {runs[0].parent}/trend.html"
    ]


def test_a_page_links_to_the_run_before_and_to_the_trend_once_they_are_there(
    runs: list[Path], page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def links(number: int) -> list[str]:
        shown = page((runs[number] / "report.html").read_text())
        return [attributes["href"] for attributes in shown.all("a") if attributes["href"].endswith(".html")]

    assert CliRunner().invoke(main, ["report", str(runs[1])]).exit_code == 0
    assert links(1) == []
    assert CliRunner().invoke(main, ["report", str(runs[0].parent)]).exit_code == 0
    assert links(0) == ["../trend.html"]
    assert links(2) == [f"../{runs[1].name}/report.html", "../trend.html"]


def test_the_run_before_is_of_the_same_target(events: Events, log: Log) -> None:
    one, other, last = (
        log(events(target=target), f"2026010{day}-000000-1") for day, target in enumerate(("a:f", "b:f", "a:f"), 1)
    )
    assert (run_before(last, "a:f"), run_before(other, "b:f"), run_before(last, "c:f")) == (one, None, None)


def test_what_cannot_be_reported_is_one_line(call: Callable[..., Result], runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, message in (
        (["report", "no_such_folder"], "holds no events*.jsonl, so it is no folder of a run"),
        (["report", str(runs[0]), "--out", "file/page.html"], "cannot be written"),
        (["watch", "no_such_folder"], "holds no events*.jsonl, so it is no folder of a run"),
        (["watch", str(runs[0]), "--host", "192.0.2.1"], "192.0.2.1:8000 cannot be served"),
    ):
        result = call(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert message in line


def test_a_missing_library_is_one_line(
    call: Callable[..., Result], runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fuzz_attn.report.page.trend", None)
    monkeypatch.setattr("fuzz_attn.cli.report.NEEDED", {"fuzz_attn": "Jinja2"})
    result = call("report", str(runs[0]))
    assert (result.exit_code, result.stderr) == (
        2,
        "fuzz-attn: a page needs Jinja2: pip install 'fuzz-attn[report]'\n",
    )
