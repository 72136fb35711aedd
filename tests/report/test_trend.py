"""The page of several runs, and the command that writes pages."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz_attn.cli.main import main
from fuzz_attn.engine.events import Event, FailureChanged, FailureFound, SavedPassed
from fuzz_attn.report.page import trend as trend_module
from fuzz_attn.report.page.run_log import read_run, runs_in
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


def test_each_run_is_a_row_from_old_to_new(runs: list[Path], page: Any, tmp_path: Path) -> None:
    trend = shown(page, runs[::-1], tmp_path)
    words = " ".join(trend.text.split())
    rows = [
        "1 failure 3 0.3 1 0 0 1 1 of 2 0 of ",
        "No failure 3 0.3 0 1 0 1 1 of 2 0 of ",
        "No failure 3 0.3 0 0 0 2 1 of 2 0 of ",
    ]
    places = [words.find(row) for row in rows]
    assert -1 not in places
    assert places == sorted(places)
    assert "Passes now: 0.json." in words
    assert "oracle (mismatch), tail rows (0.json) open known passes" in words


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ([2, 0], "New or regressed: 0.json."),
        ([0, 1], "The last run shows the same failures as the one before."),
    ],
)
def test_what_the_last_run_changed(order: list[int], sentence: str, runs: list[Path]) -> None:
    logs = [log for index in order for log in read_run(runs[index])]
    assert sentence in trend_module._changes(logs)


def test_a_fixed_failure_that_fails_has_regressed(events: Events, log: Log) -> None:
    (run,) = read_run(log(with_status(events(), "fixed")))
    assert trend_module.numbers_of(run) == {"open": 0, "known": 0, "regressed": 1, "fixed": 1}


def test_pages_are_linked_by_relative_addresses(runs: list[Path], page: Any, tmp_path: Path) -> None:
    links = [attributes["href"] for attributes in shown(page, runs, tmp_path).all("a")]
    assert [link for link in links if not link.startswith("#")] == [
        f"runs/2026010{number}-000000-1/report.html" for number in (1, 2, 3)
    ]


def test_nothing_of_a_target_is_markup(events: Events, log: Log, page: Any, hostile: str, tmp_path: Path) -> None:
    folders = [log(events(text=hostile, target=hostile), f"2026010{number}-000000-1") for number in (1, 2)]
    tags = {tag for tag, _ in shown(page, folders, tmp_path).elements}
    assert not tags & {"script", "img", "iframe", "link"}


def test_a_folder_of_runs_stands_for_all_of_them(runs: list[Path]) -> None:
    assert list(runs_in([runs[0].parent])) == runs
    assert list(runs_in([runs[1]])) == [runs[1]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs the command line in a new folder; pages are short, as drawing takes seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "fuzz_attn.report.page.run_page.run_page", lambda logs, made, live=False: f"page of {logs[0].target}"
    )

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
    monkeypatch.setattr("fuzz_attn.cli.report.NEEDED", {"fuzz_attn": "matplotlib"})
    result = call("report", str(runs[0]))
    assert (result.exit_code, result.stderr) == (
        2,
        "fuzz-attn: a page needs matplotlib: pip install 'fuzz-attn[report]'\n",
    )
