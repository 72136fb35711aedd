"""The page of a log of a million cases is small and quickly made: everything that a log counts stays small."""

import time
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz_attn.engine.events import WHOLE_RUN, CaseJudged, CaseRefused, Event, FailureSeenAgain, Finished
from fuzz_attn.engine.listeners import event_log
from fuzz_attn.engine.listeners.distributions import Distributions
from fuzz_attn.engine.listeners.event_log import DistributionsLine, StatisticsLine, read_log
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.report.page.run_log import read_run
from fuzz_attn.report.page.run_page import run_page

Events = Callable[..., list[Event]]
Log = Callable[..., Path]
CASES = 1_000_000
SECONDS, MEGABYTES = 30.0, 5.0


def widest(lines: list[Any]) -> Distributions:
    """Return the distributions of a log, with each bin that a long run may fill."""
    (found,) = (line.distributions for line in lines if isinstance(line, DistributionsLine))
    bins = dict.fromkeys(range(21), CASES // 20)
    sizes = {what: dict.fromkeys(range(1, 301), CASES // 300) for what in found.sizes}
    lengths = dict.fromkeys(found.lengths, bins)
    ratios = {dtype: {number - 12: cases for number, cases in bins.items() if number < 18} for dtype in "abcdef"}
    changed: Distributions = msgspec.structs.replace(found, sizes=sizes, lengths=lengths, ratios=ratios)
    return changed


def million(events: Events, log: Log) -> Path:
    """Return the folder of a run of a million cases in ten hours; each twentieth fails, each fiftieth is refused."""
    folder = log(events(failures=60))
    path = folder / "events.jsonl"
    lines = list(read_log(path))
    (counted,) = (line.statistics for line in lines if isinstance(line, StatisticsLine))
    refused = next(line for line in lines if isinstance(line, CaseRefused))
    failed = CaseJudged(0, "search", refused.order, (Verdict("oracle", "mismatch", "wrong" * 20),), 0.01)
    again, encode = msgspec.json.encode(FailureSeenAgain(0, "saved/1.json")), msgspec.json.encode
    with path.open("wb") as file:
        for line in lines:
            if not isinstance(line, Finished | StatisticsLine | DistributionsLine):
                file.write(encode(line) + b"\n")
        file.writelines([encode(failed) + b"\n" + again + b"\n"] * (CASES // 20))
        file.writelines([encode(refused) + b"\n"] * (CASES // 50))
        keys = dict.fromkeys(range(20000), 50)
        for second in range(10, 36_010, 10):
            now = {"cases": CASES * second // 36_000, "seconds": float(second), "outcomes": second}
            part = msgspec.structs.replace(counted, **now, compile_keys=keys if second == 36_000 else {})
            file.write(encode(StatisticsLine(part)) + b"\n")
        file.write(encode(DistributionsLine(widest(lines))) + b"\n")
        file.write(encode(Finished(WHOLE_RUN, 36_000.0)) + b"\n")
    return folder


def test_the_page_of_a_million_cases(events: Events, log: Log) -> None:
    folder = million(events, log)
    began = time.process_time()
    text = run_page(read_run(folder), 0.0)
    assert time.process_time() - began < SECONDS
    assert len(text.encode()) < MEGABYTES * 1e6
    assert "1\u202f000\u202f000 in 36000 s" in text


def test_everything_is_written_again_ever_more_rarely(
    events: Events, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count(0.0, 1.0)
    monkeypatch.setattr(event_log, "time", type("", (), {"monotonic": lambda: next(clock)}))
    cases = [event for event in events(failures=0) if isinstance(event, CaseJudged)][:1]
    first, *rest = events(failures=0)
    lines = list(read_log(log([first, *cases * 10_000, *rest]) / "events.jsonl"))
    short = sum(isinstance(line, StatisticsLine) for line in lines)
    whole = [line.statistics.cases for line in lines if isinstance(line, StatisticsLine) if line.statistics.masks]
    assert 1000 < short < 1005
    assert sum(isinstance(line, DistributionsLine) for line in lines) == len(whole)
    assert 40 < len(whole) < 70
    assert all(after - before <= max(10, 0.11 * before + 10) for before, after in pairwise(whole))


def test_a_log_is_read_without_its_last_line_where_that_is_cut_off(events: Events, log: Log) -> None:
    folder = log(events())
    path = folder / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    (run,) = read_run(folder)
    assert run.statistics.cases == 3
