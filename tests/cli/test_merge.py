"""`run --shard` and `merge`: parts of a run in several folders, united."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fuzz_attn.cli.main import main

TARGETS = Path(__file__).parents[1] / "sample_targets"
TARGET = "torch_attention.py:last_row_unwritten"

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that runs the command line in this process, in a new folder that contains the target."""
    shutil.copy(TARGETS / "torch_attention.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda *arguments: CliRunner().invoke(main, arguments)


def test_two_parts_are_one_run(call: Call, tmp_path: Path) -> None:
    limits = "--seed", "3", "--workers", "1", "--max-cases", "12"
    for number in (1, 2):
        done = call("run", "--target", TARGET, "--shard", f"{number}/2", "--out", f"part-{number}", *limits)
        assert done.exit_code == 1, done.output
    united = call("merge", "part-1", "part-2", "--out", "merged", "--json", "--markdown", "m.md", "--junit", "j.xml")
    assert united.exit_code == 1
    (target,) = json.loads(united.stdout)["targets"]
    assert target["statistics"]["cases"] == 12
    assert target["statistics"]["shards"] == 2
    assert len(target["failures"]) == 1, "both parts found the same bug"
    (row,) = (line for line in Path("m.md").read_text().splitlines() if line.startswith("| oracle"))
    assert "fuzz\\-attn" not in row
    assert "merged/counterexamples/" in row
    assert Path("j.xml").exists()
    (folder,) = (path.parent for path in Path("merged").rglob("summary.json"))
    assert json.loads((folder / "summary.json").read_text())["cases"] == 12
    assert call("coverage", "merged").exit_code == 0
    again = call("merge", "part-2", "part-1", "--out", "merged", "--annotations")
    assert "::error file=merged/counterexamples/" in again.stdout
    assert "12 in " in again.stdout
    lacking = call("merge", "part-1", "--out", "one", "--json")
    assert (lacking.exit_code, json.loads(lacking.stdout)["exit_status"]) == (2, 2), (
        "a case fails, but a part is missing"
    )
    assert "of 2 parts with seed 3 there is none of 2" in lacking.stderr
    replayed = call("replay", "merged/counterexamples", "--target", TARGET)
    assert replayed.exit_code == 1
    assert "1 replayed, 1 failed" in replayed.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shard", "3/2", "--seed", "1"), "'3/2' must be i/n with i from 1 to n"),
        (("--shard", "0/2", "--seed", "1"), "'0/2' must be i/n with i from 1 to n"),
        (("--shard", "two", "--seed", "1"), "'two' must be i/n with i from 1 to n"),
        (("--gpu-share", "0.5"), "--gpu-share=0.5 needs --ray"),
        (("--shard", "1/2"), "--shard 1/2 needs --seed, the same number for all parts"),
        (
            ("--shard", "1/4", "--seed", "1", "--max-cases", "3"),
            "--max-cases=3 must be at least 4 with --shard 1/4: one case for each part",
        ),
    ],
)
def test_a_part_that_cannot_be_is_an_error(call: Call, options: tuple[str, ...], message: str) -> None:
    done = call("run", "--target", TARGET, *options)
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_folder_without_runs_cannot_be_merged(call: Call) -> None:
    Path("empty").mkdir()
    done = call("merge", "empty", "--out", "merged")
    assert (done.exit_code, done.stderr) == (2, "fuzz-attn: empty: holds no events.jsonl of a run\n")
    assert done.stdout == ""


@pytest.mark.slow
def test_a_run_continues_the_last_one(call: Call) -> None:
    options = "--target", "torch_attention.py:unified_attention", "--workers", "1", "--max-cases", "30", "--seed", "1"
    keys = []
    for _ in range(2):
        done = call("run", *options, "--continue", "--out", "results", "--json")
        assert done.exit_code == 0, done.output
        (target,) = json.loads(done.stdout)["targets"]
        keys.append(set(target["statistics"]["compile_keys"]))
    assert len(keys[0] & keys[1]) <= 1, "only the simplest key comes again"
    assert "compile keys were not covered by earlier runs: they are drawn first" in target["notes"][0]
