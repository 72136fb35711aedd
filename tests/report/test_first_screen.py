"""The first screen of a page: what is wrong, where, how often and what next, in the numbers of the terminal."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fuzz_attn.engine.events import CaseJudged, CaseRefused, Event, FailureChanged, FailureFound, Finished
from fuzz_attn.engine.listeners.results import FoundFailure
from fuzz_attn.oracle.verdict import Verdict, Weights
from fuzz_attn.report.outcome import failures_list
from fuzz_attn.report.page import charts
from fuzz_attn.report.page.failures import shown_failures, title_of
from fuzz_attn.report.page.run_log import RunLog, read_run
from fuzz_attn.report.page.run_page import Surroundings, run_page, verdict_in_words
from fuzz_attn.report.page.sources import Places
from fuzz_attn.report.printing import text_of

Events = Callable[..., list[Event]]
Log = Callable[..., Path]


@pytest.fixture
def run(events: Events, log: Log) -> Callable[..., RunLog]:
    """Return a function that returns the log of a run whose events some function has changed."""

    def made(change: Callable[[list[Event]], list[Event]] = lambda every: every, **options: Any) -> RunLog:
        (read,) = read_run(log(change(events(**options))))
        return dataclasses.replace(read, finished=change is not unfinished)

    return made


def with_files(status: str, saved: range) -> Callable[[list[Event]], list[Event]]:
    """Return a change that lets some failures have files of a status from before the run."""

    def change(event: Event) -> Event:
        if isinstance(event, FailureFound | FailureChanged) and event.failure in saved:
            known = {"reference": "#7", "because": "waits"} if status == "known" else {}
            found = replace(event.counterexample, status=status, **known)
            fields = {"saved": True} if isinstance(event, FailureFound) else {}
            return replace(event, counterexample=found, **fields)
        return event

    return lambda every: [change(event) for event in every]


def mostly_refused(every: list[Event]) -> list[Event]:
    """Return events with many refused cases for each judged one."""
    return [copy for event in every for copy in [event] * (40 if isinstance(event, CaseRefused) else 1)]


def nothing_judged(every: list[Event]) -> list[Event]:
    return [event for event in every if not isinstance(event, CaseJudged)]


def cut_short(every: list[Event]) -> list[Event]:
    return [replace(event, error="no memory") if isinstance(event, Finished) else event for event in every]


def unfinished(every: list[Event]) -> list[Event]:
    """Return the events of a run that goes on, which the fixture recognises."""
    return every


@pytest.mark.parametrize(
    ("change", "failures", "mark", "words", "more"),
    [
        (list, 2, "bad", "2 failures in 3 cases", ""),
        (with_files("open", range(1)), 2, "bad", "2 failures in 3 cases", "1 of them new"),
        (with_files("open", range(2)), 2, "bad", "2 failures in 3 cases", "None of them new"),
        (with_files("fixed", range(2)), 2, "bad", "2 failures in 3 cases", "All of them were marked as fixed"),
        (with_files("fixed", range(1)), 2, "bad", "2 failures in 3 cases", "1 of them new, 1 regressed"),
        (with_files("fixed", range(1)), 1, "bad", "1 failure in 3 cases", "It was marked as fixed"),
        (with_files("open", range(1)), 1, "bad", "1 failure in 3 cases", "Not new"),
        (with_files("known", range(1)), 2, "bad", "1 failure, and 1 known failure in 3 cases", ""),
        (
            with_files("known", range(2)),
            2,
            "good",
            "No failure, and 2 known failures in 3 cases",
            "Fewer than 30 cases",
        ),
        (list, 0, "good", "No failure in 3 cases", "Fewer than 30 cases say too little"),
        (mostly_refused, 0, "open", "Mostly refused: 40 of 43 cases, no failure in 3 cases", ""),
        (nothing_judged, 0, "open", "Nothing judged", "1 case refused"),
        (cut_short, 0, "bad", "Cut short by an error: no failure in 3 cases", ""),
        (unfinished, 0, "open", "So far: no failure in 3 cases", "Fewer than 30 cases"),
        (unfinished, 1, "bad", "So far: 1 failure in 3 cases", ""),
    ],
)
def test_the_verdict_is_one_sentence(
    change: Any, failures: int, mark: str, words: str, more: str, run: Callable[..., RunLog]
) -> None:
    found = verdict_in_words(run(change, failures=failures))
    assert (found.mark, found.words) == (mark, words)
    assert found.more.startswith(more)
    assert bool(found.more) is bool(more)


@pytest.mark.parametrize(
    ("change", "failures", "words"),
    [
        (list, 2, "See why failure 1 is wrong"),
        (with_files("known", range(1)), 2, "See why failure 2 is wrong"),
        (list, 0, "1 line of the kernels had a mask that was not seen both ways"),
        (mostly_refused, 0, "Say in a binding what the target takes"),
        (nothing_judged, 0, "Say in a binding what the target takes"),
        (cut_short, 0, "Read what ended the run, below"),
        (unfinished, 0, "Wait for the end of the run"),
    ],
)
def test_the_page_says_what_next(change: Any, failures: int, words: str, run: Callable[..., RunLog], page: Any) -> None:
    text = " ".join(page(run_page([run(change, failures=failures)], 0.0)).text.split())
    assert 0 < text.find(words) < text.rindex("Counters")


@pytest.mark.parametrize(("failures", "shown"), [(1, True), (2, False)])
def test_a_single_failure_stands_below_the_verdict(
    failures: int, shown: bool, run: Callable[..., RunLog], page: Any
) -> None:
    text = " ".join(page(run_page([run(failures=failures)], 0.0)).text.split())
    first_screen = text[: text.index("Next:")]
    assert ("Window: words." in first_screen) is shown


@pytest.mark.parametrize(("failing", "words"), [(2, "2 of 3 cases failed"), (216, "216 cases failed")])
def test_the_cases_that_failed_are_counted_beside_the_failures(
    failing: int, words: str, run: Callable[..., RunLog], page: Any
) -> None:
    """Cases of saved files may fail besides those that were drawn."""
    read = run(failures=2)
    counted = replace(read.statistics, failing=failing)
    read = dataclasses.replace(read, report=replace(read.report, statistics=counted))
    assert f"seed 9 · {words}" in page(run_page([read], 0.0)).text


def test_failures_have_the_numbers_of_the_terminal(run: Callable[..., RunLog], page: Any) -> None:
    """Those that were only seen come last, and those of a class together."""

    def some_unfollowed(every: list[Event]) -> list[Event]:
        return [
            replace(event, followed=False) if isinstance(event, FailureFound) and event.failure in (0, 3) else event
            for event in every
        ]

    read = run(some_unfollowed, failures=5)
    lines = text_of(failures_list(read.report.failures), 200).splitlines()
    terminal = [line.split(maxsplit=1)[0] for line in lines if re.match(r" \d  ", line)]
    shown = page(run_page([read], 0.0))
    rows = [attributes["data-failure"] for attributes in shown.all("li") if "data-failure" in attributes]
    titles = [words for _, words in shown.headings if re.match(r"\d+\. ", words)]
    assert terminal == ["1", "2", "3", "4", "5"]
    assert rows == [f"failure-{number}" for number in terminal]
    assert [title.partition(".")[0] for title in titles] == terminal
    assert titles[0].startswith("1. Words"), "the second failure that was seen is the first that was followed"


def test_a_failure_that_nothing_explains_is_called_so(run: Callable[..., RunLog]) -> None:
    (found,) = run(failures=1).report.failures
    assert title_of(found) == ("Window", "words")
    assert title_of(with_verdict(found, explanation="")) == ("Unexplained", "words")
    assert title_of(with_verdict(found, explanation="", worst=())) == ("", "Words")
    larger = "window: key 3 is lost (in a larger case: sequence 0: 4 tokens)"
    assert title_of(with_verdict(found, explanation=larger)) == ("Window", "key 3 is lost")


def with_verdict(found: FoundFailure, **changes: object) -> FoundFailure:
    verdict = replace(found.counterexample.verdict, **changes)
    return replace(found, counterexample=replace(found.counterexample, verdict=verdict))


def test_a_row_names_the_kernel_or_the_line_and_links_to_it(
    run: Callable[..., RunLog], kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(kernel.parent)
    read = run(failures=1)
    (found,) = read.report.failures
    sited = with_verdict(found, site=f"{kernel}:3", kind="out_of_bounds", property_name="sanitizers")

    def place(failure: FoundFailure, link: str) -> tuple[str, ...]:
        (shown,) = shown_failures([failure], "", Places(link), read.statistics.masks, kernel.parent)
        assert shown.place is not None
        return tuple(shown.place)

    assert place(sited, "") == ("kernel.py:3", "", "")
    github = "https://github.com/me/repo/blob/main/{file}#L{line}"
    assert place(sited, github)[2] == "https://github.com/me/repo/blob/main/kernel.py#L3"
    assert place(found, github) == ("kernel.py:2", "kernel", "https://github.com/me/repo/blob/main/kernel.py#L2")
    assert place(sited, "vscode://file/{path}:{line}")[2] == f"vscode://file/{kernel}:3"
    monkeypatch.chdir("/")
    assert place(sited, "vscode://file/{path}:{line}")[2] == f"vscode://file/{kernel}:3"
    monkeypatch.chdir("/usr")
    assert place(sited, github)[2] == "", "a file elsewhere is not in the repository"


def test_the_line_of_a_finding_is_shown_with_those_around_it(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(kernel.parent)
    excerpt = Places().excerpt(f"{kernel}:3", "out of bounds")
    assert excerpt is not None
    assert [line.number for line in excerpt.lines] == [1, 2, 3, 4, 5]
    assert [line.number for line in excerpt.lines if line.missing == ("out of bounds",)] == [3]
    assert Places().excerpt(f"{kernel}:99", "") is None


@pytest.mark.parametrize("name", ["secret.py", "secret.txt"])
def test_no_log_shows_a_file_of_another_folder_or_kind(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    secret = tmp_path / ("here" if name.endswith(".txt") else ".") / name
    secret.write_text("secret = 1\n")
    monkeypatch.chdir(tmp_path / "here")
    assert Places().excerpt(f"{secret}:1", "") is None


def test_weights_say_which_are_wrong() -> None:
    weights = Weights(0, 0, (7,), 30, ("0 0.5 0.5",), ("0 0.333 0.667",), ("011",))
    assert charts.sentence(charts.grid_of(weights)) == (
        "Query 7 gives key 31 a weight of 0.5 where 0.333 is right. "
        "Query 7 gives key 32 a weight of 0.5 where 0.667 is right."
    )
    lost = replace(weights, used=("0 0 1",))
    assert charts.sentence(charts.grid_of(lost)) == (
        "Query 7 gives key 31 no weight where 0.333 is right. 1 other weight is wrong too."
    ), "a key that is lost is the cause, and the weight of the other follows"
    unread = replace(weights, used=("? ? ?",))
    assert "key 31 no weight that is a number where 0.333" in charts.sentence(charts.grid_of(unread))


def test_a_large_drawing_is_cut_to_what_is_wrong() -> None:
    right = " ".join(["0.01"] * 100)
    used = " ".join(["0.01"] * 90 + ["0"] + ["0.01"] * 9)
    weights = Weights(0, 0, (0,), 0, (used,), (right,), ("1" * 100,))
    grid = charts.cropped(charts.grid_of(weights), 40, 16)
    assert grid.keys == 40
    assert [key + grid.first_key for _, key in grid.causes] == [90]
    assert charts.picture(weights).count("<rect") < 300


@pytest.mark.parametrize(
    "changes", [{"used": ()}, {"used": ("",)}, {"visible": ("01",)}, {"right": ("1",)}, {"queries": ()}]
)
def test_weights_that_do_not_fit_together_are_drawn_as_far_as_they_do(changes: dict[str, Any]) -> None:
    weights = replace(Weights(0, 0, (0, 1), 0, ("0 1", "1 0"), ("1 0", "1 0"), ("10", "11")), **changes)
    assert charts.picture(weights).count("<svg") == charts.picture(weights).count("</svg>")
    charts.thumbnail(weights)


def test_a_page_of_another_folder_links_to_the_file_of_a_failure(
    run: Callable[..., RunLog], page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read = run(failures=2)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "1.json").write_text("{}")
    shown = page(run_page([read], 0.0, around=Surroundings(tmp_path / "pages")))
    assert [link for each in shown.all("a") if not (link := each["href"]).startswith("#")] == ["../saved/1.json"]
    served = page(run_page([read], 0.0, live=True))
    assert all(each["href"].startswith("#") for each in served.all("a")), "a page that is served lies in no folder"


def test_nothing_is_called_covered_where_nothing_was_judged(run: Callable[..., RunLog], page: Any) -> None:
    assert "pairs of features met" in page(run_page([run()], 0.0)).text
    assert "pairs of features met" not in page(run_page([run(nothing_judged, failures=0)], 0.0)).text


def test_an_empty_report_has_a_page(run: Callable[..., RunLog], page: Any) -> None:
    bare = dataclasses.replace(run(), distributions=None, ready=None, history=())
    shown = page(run_page([bare], 0.0))
    assert shown.unclosed == []
    assert "Pairs of features not recorded" in " ".join(shown.text.split())


def test_a_state_failure_is_titled_by_what_was_seen(run: Callable[..., RunLog]) -> None:
    (found,) = run(failures=1).report.failures
    verdict = Verdict("inputs_unchanged", "input_changed", "the launch changed its input sinks")
    changed = replace(found, counterexample=replace(found.counterexample, verdict=verdict, confirmation="state"))
    assert title_of(changed) == ("", "The launch changed its input sinks")


def test_the_batch_is_drawn_with_its_pages_and_wrong_rows(run: Callable[..., RunLog]) -> None:
    """The case has sequences of 3 and 300 cached and 2 and 40 new tokens, in pages of 16."""
    (found,) = run(failures=1).report.failures
    (shown,) = shown_failures([found], "", Places(), (), Path())
    first, second = shown.batch
    assert (first.words, second.words) == ("3 cached, 2 new, 1 page", "300 cached, 40 new, 22 pages")
    assert (first.share, second.share) == (100 * 5 / 340, 100)
    assert (first.page, second.page) == (0.0, 100 * 16 / 340), "one page has no border"
    assert (first.wrong, second.wrong) == ((100 * 4.5 / 5,), ()), "the worst element is of query 1 of sequence 0"
