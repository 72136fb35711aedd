"""Logs of invented runs for tests of their pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import HeadLayout, LaunchHints, Sequence
from fuzz_attn.counterexamples import Counterexample, signed
from fuzz_attn.engine.events import (
    WHOLE_RUN,
    CaseJudged,
    CaseRefused,
    Event,
    FailureChanged,
    FailureFound,
    Finished,
    Note,
    SavedPassed,
    Started,
    WorkerLost,
    WorkerReady,
)
from fuzz_attn.engine.listeners.event_log import LOG_NAME, EventLog
from fuzz_attn.engine.orders import Order, Ready
from fuzz_attn.oracle.verdict import Element, Refusal, Verdict, Weights

HOSTILE = "<script>alert(1)</script> \"quoted' &amp; $x$ {{ 7 * 7 }} \x1b[31m </style> --> ]]> <img src=http://evil.example/x>"
"""A text that a target may hold: markup of every kind, a template, a control character, an address."""
WINDOW = AttentionCase(sequences=(Sequence(2, 3), Sequence(40, 300)), window=2, heads=HeadLayout(head_size=32))
PLAIN = AttentionCase(sequences=(Sequence(1, 9),), softcap=2.0, launch=LaunchHints(path="3d", num_segments=4))
WORST = (Element(1, 0, 2, 0, 1, actual="nan", expected="-0.18", bound="1.5e-07"),)
WEIGHTS = Weights(0, 0, (0, 1), 2, ("0.25 0.75 0", "0 0.5 0.5"), ("0 1 0", "0 0.5 0.5"), ("010", "011"))
"""Query 0 attends key 2, which it must not see."""

VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """The elements of a page: (tag, attributes) in order, the text of each heading, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.headings: list[tuple[int, str]] = []
        self.text = ""
        self.unclosed: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.text += " "
        if tag not in VOID:
            self.unclosed.append(tag)
        if tag in {"h1", "h2", "h3", "h4", "h5", "h6"}:
            self.headings.append((int(tag[1]), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed, f"</{tag}> closes nothing"
        assert self.unclosed.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.unclosed and self.unclosed[-1] != "style":
            self.text += data
        if self.headings and any(tag == f"h{self.headings[-1][0]}" for tag in self.unclosed):
            level, words = self.headings[-1]
            self.headings[-1] = level, words + data

    def all(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of each element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def page() -> type[Page]:
    """Return the class that reads a page."""
    return Page


@pytest.fixture
def hostile() -> str:
    """Return a text that must not become markup."""
    return HOSTILE


Events = Callable[..., list[Event]]
Log = Callable[..., Path]


def failure(
    target: str = "mine.py:attend", message: str = "2 of 8 wrong", number: int = 0, **changes: object
) -> Counterexample:
    """Return a confirmed counterexample, a wrong output or another bug for each other number."""
    verdict = Verdict(
        "oracle", "mismatch", message, 12.5, "tail_rows", 2, 8, WORST, explanation=f"window: {message}", weights=WEIGHTS
    )
    if number:
        verdict = Verdict("oracle", "exception", message, site=f"mine.py:{number}")
    found = signed(target, "unified", None, WINDOW, verdict)
    return msgspec.structs.replace(found, **({"confirmation": "confirmed", "shrunk": True} | changes))


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """Return a file of a kernel with two masks on lines 3 and 4."""
    path = tmp_path / "kernel.py"
    path.write_text(
        "import triton\ndef kernel(a):\n    x = tl.load(a, mask=m)\n    tl.store(a, x, mask=m)\n    return x\n"
    )
    return path


@pytest.fixture
def events(kernel: Path) -> Events:
    """Return a function that returns the events of a run; ``text`` is what its target says everywhere."""

    def made(text: str = "words", target: str = "mine.py:attend", failures: int = 1, time: float = 1e9) -> list[Event]:
        masks = (
            Mask(
                str(kernel), 3, "kernel", "load", 0, "x = tl.load(a, mask=m)", True, ("all true", "mixed", "all false")
            ),
            Mask(str(kernel), 4, "kernel", "store", 0, "tl.store(a, x, mask=m)", True, ("all true",)),
        )
        passed = (Verdict("oracle", ratio=0.5),)
        found = [
            event
            for number in range(failures)
            for event in (
                FailureFound(0, number, failure(target, text, number), f"saved/{number}.json", 1.25),
                FailureChanged(0, number, failure(target, text, number), f"saved/{number}.json", done=True),
            )
        ]
        return [
            Started(target, 9, 1, time, max_time=60.0, versions={"torch": text}, system=text),
            WorkerReady(0, Ready(target, "mine", "unified", "simulator", binding=Binding(), reasons={text: text})),
            *(CaseJudged(0, "search", Order(case), passed, 0.01, masks) for case in (WINDOW, PLAIN, PLAIN)),
            CaseJudged(0, "shrink", Order(WINDOW), passed, 0.25),
            CaseRefused(0, "search", Order(WINDOW), Refusal("host", text, text, text, text)),
            *found,
            SavedPassed(0, failure(target, status="fixed"), "saved/old.json"),
            WorkerLost(0, text),
            Note(0, text),
            Finished(0, 10.0),
            Finished(WHOLE_RUN, 12.0),
        ]

    return made


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a function that writes events into the log of a run's folder and returns the folder."""

    def written(events: Iterable[Event], name: str = "20260101-000000-1") -> Path:
        folder = tmp_path / "runs" / name
        with EventLog(folder / LOG_NAME) as listener:
            for event in events:
                listener(event)
        return folder

    return written
