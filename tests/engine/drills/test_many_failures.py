"""Fault drills: a run with many known files and many bugs ends in time, however it ends, and leaves no process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz_attn import counterexamples
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.oracle.verdict import Verdict

Start = Callable[..., Any]

KNOWN = 45
LIMIT = 3.0
LATE = 120.0
"""Seconds that a busy machine may take to start and end a run; a run that waited for ever took no end at all."""


def write_known(folder: Path) -> None:
    """Save failures of the target as known ones, each of another line."""
    saved = folder / "out" / "counterexamples" / "many_bugs"
    saved.mkdir(parents=True)
    for number in range(KNOWN):
        case = AttentionCase(sequences=(Sequence(1, 10 + number),), heads=HeadLayout(head_size=16))
        found = counterexamples.signed("many_bugs", "unified", None, case, Verdict("oracle", "exception", "known"))
        known = msgspec.structs.replace(found, status="known", reference="my/repo#1", because="a drill")
        counterexamples.overwrite(known, saved / f"known-{number:02}.json")


def started(start: Start, folder: Path, *options: str) -> Any:
    write_known(folder)
    return start("many_bugs", *options, "--workers", "2", folder=folder)


def new(run: Any) -> list[Path]:
    return [path for path in run.files if not path.name.startswith("known-")]


@pytest.mark.slow
def test_a_run_with_many_failures_ends_in_time(start: Start, tmp_path: Path) -> None:
    began = time.monotonic()
    run = started(start, tmp_path / "run", "--max-time", f"{LIMIT:.0f}")
    run.end(1)
    assert time.monotonic() - began < LIMIT + LATE
    assert new(run)
    assert len(run.files) - len(new(run)) == KNOWN


@pytest.mark.sampled(3)
@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT), (signal.SIGKILL,)])
def test_a_run_with_many_failures_can_be_ended(
    signals: tuple[signal.Signals, ...], start: Start, tmp_path: Path
) -> None:
    run = started(start, tmp_path / "run", "--max-time", "600")
    run.wait_until(lambda: new(run))
    for number in signals:
        run.process.send_signal(number)
        time.sleep(0.2)  # signals of one number that come at once are one
    if signal.SIGKILL in signals:
        run.process.wait()
        run.assert_nothing_left()
    else:
        run.end(1)
    assert new(run)


@pytest.mark.slow
def test_each_worker_of_a_run_knows_what_is_marked(start: Start, tmp_path: Path) -> None:
    """Also where the marked files had only been seen, which the first worker confirms."""
    run = start("four_bugs", "--max-cases", "60", folder=tmp_path / "run")
    run.end(1)
    for path, found in zip(run.files, run.found, strict=True):
        marks = {"status": "known", "reference": "my/repo#1", "because": "a drill"}
        seen = msgspec.structs.replace(found, **marks, confirmation="unconfirmed", shrunk=False, trigger=())
        counterexamples.overwrite(seen, path)
    marked = {path: path.read_bytes() for path in run.files}
    assert len(marked) == 4
    run = start("four_bugs", "--max-cases", "45", "--workers", "3", folder=tmp_path / "run")
    run.end(0)
    assert {path: path.read_bytes() for path in run.files} == marked


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ended_by", [None, signal.SIGINT, signal.SIGKILL])
def test_what_a_target_starts_ends_with_the_run(ended_by: signal.Signals | None, start: Start) -> None:
    run = start("leaves_processes", "--max-cases", "12" if ended_by is None else "100000", "--max-time", "300")
    if ended_by is None:
        run.end(0)
        return
    run.wait_until(lambda: len(run.processes("time.sleep(3600)")) >= 3)
    run.process.send_signal(ended_by)
    if ended_by == signal.SIGKILL:
        run.process.wait()
        run.assert_nothing_left()
    else:
        run.end(130)
