"""The command line: output, files and exit status of each command."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz_attn import counterexamples
from fuzz_attn.case.aspects import FEATURES_OF
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.families import Family
from fuzz_attn.cli.main import main
from fuzz_attn.cli.run import Request, parts
from fuzz_attn.cli.targets import domain_table
from fuzz_attn.engine.orders import Ready
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.report.printing import text_of
from fuzz_attn.targets import loading

TARGETS = Path(__file__).parents[1] / "sample_targets"
SCRIPT = str(Path(sys.executable).with_name("fuzz-attn"))
A_HANG = 1800.0
"""Seconds after which a wait counts as a hang, on the slowest machine."""

Call = Callable[..., Result]
Save = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder: a new one, which contains the targets."""
    for name in ("torch_attention.py", "misbehaving.py", "broken_import.py"):
        shutil.copy(TARGETS / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def call(folder: Path) -> Call:
    """Return a function that runs the command line in this process."""

    def called(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments)

    return called


@pytest.fixture
def save(folder: Path, case: AttentionCase) -> Save:
    """Return a function that saves a counterexample, whose case fails on a target that leaves rows unwritten."""

    def saved(target: str = "torch_attention.py:last_row_unwritten", kind: str = "mismatch", where: str = "a") -> Path:
        verdict = msgspec.convert({"property_name": "oracle", "kind": kind, "message": "as it was"}, Verdict)
        found = counterexamples.signed(target, "unified", None, case, verdict)
        return counterexamples.save(found, folder / "tests" / "counterexamples" / where)

    return saved


def folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, but for Python's own cache of a target that lies there."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__")


def one_line(result: Result) -> str:
    """Return the one line on standard error, and check that nothing else was printed."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return str(line)


def test_run_on_a_correct_target(folder: Path) -> None:
    command = [SCRIPT, "run", "--target", "torch_attention.py:unified_attention", "--max-cases", "40", "--workers", "2"]
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (folder / "conftest.py").write_text("raise RuntimeError('this file must not be loaded')\n")
    environment = {**os.environ, "PYTEST_ADDOPTS": "--no-such-option", "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_ = lines = done.stdout.splitlines()
    (seed,) = re.findall(r"^Fuzzing torch_attention.py:unified_attention with seed (\d+), 2 workers$", first)
    assert "Summary of torch_attention.py:unified_attention" in lines
    assert re.search(rf"^ seed +{seed}, split over 2 shards$", done.stdout, re.MULTILINE)
    assert re.search(r"^ cases +40 in \d+ s, \d+\.\d cases/s$", done.stdout, re.MULTILINE)
    assert re.search(r"^ failures +0$", done.stdout, re.MULTILINE)
    assert re.search(r"^No failure in 40 cases of \S+: at most 0\.075\s+failures per case", done.stdout, re.MULTILINE)
    (summary,) = re.findall(r"^Written  (reports/runs/\S+/summary\.json)$", done.stdout, re.MULTILINE)
    assert json.loads((folder / summary).read_text())["cases"] == 40
    *others, page = lines
    assert all(line == line.rstrip() and len(line) <= 80 for line in others)
    assert re.fullmatch(rf"Page     \S+ report {Path(summary).parent}", page)
    assert folders_in(folder) == ["reports"]


def test_several_targets_share_the_limits(folder: Path) -> None:
    right, wrong = (f"torch_attention.py:{name}" for name in ("unified_attention", "last_row_unwritten"))
    command = [SCRIPT, "run", "--target", wrong, "--target", right, "--workers", "1", "--seed", "1", "--out", "o"]
    command += ["--max-cases", "21"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.findall(r"^Summary of (\S+)$", done.stdout, re.MULTILINE) == [wrong, right]
    files = {path.parent.name: json.loads(path.read_text()) for path in (folder / "o").rglob("summary.json")}
    assert {name: found["target"] for name, found in files.items()} == {
        "torch_attention.py-last_row_unwritten": wrong,
        "torch_attention.py-unified_attention": right,
    }
    assert files["torch_attention.py-unified_attention"]["cases"] == 10
    (run_folder,) = re.findall(r"^Run folder  (.*)$", done.stdout, re.MULTILINE)
    listed = CliRunner().invoke(main, ["coverage", run_folder])
    assert re.findall(r"^Mask coverage of (\S+),", listed.stdout, re.MULTILINE) == [wrong, right]


def test_run_without_a_target_fuzzes_all_families() -> None:
    names = get_args(Family)
    request = Request(names, None, "auto", 60.0, 10, 1, 2)
    shares = list(parts(request))
    assert [part.targets for part in shares] == [(name,) for name in names]
    assert sum(part.max_cases or 0 for part in shares) == 10
    assert [part.max_time for part in shares] == [60.0 / len(names)] * len(names)
    few = list(parts(dataclasses.replace(request, max_cases=2)))
    assert [part.max_cases for part in few] == [1, 1]


def test_run_on_a_wrong_target_writes_below_out(folder: Path) -> None:
    arguments = [
        "--target",
        "torch_attention.py:last_row_unwritten",
        "--max-cases",
        "20",
        "--workers",
        "1",
        "--seed",
        "3",
    ]
    command = [SCRIPT, "run", *arguments, "--out", "my results"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert folders_in(folder) == ["my results"]
    (file,) = (folder / "my results" / "counterexamples").rglob("*.json")
    assert re.search(r"^FAILED \S+:last_row_unwritten on \w+\noracle \(unwritten\): ", done.stdout, re.MULTILINE)
    assert re.search(r"^ failures +1$", done.stdout, re.MULTILINE)
    for name in ("explain", "replay"):
        place = shlex.quote(str(file.relative_to(folder)))
        assert re.search(rf"^    \S+ {name} {re.escape(place)} --trust$", done.stdout, re.MULTILINE)
    (pasted,) = re.findall(r"^Replay it\n (.*)$", done.stdout, re.MULTILINE)
    replayed = subprocess.run(pasted, shell=True, capture_output=True, text=True, check=False)
    assert replayed.returncode == 1, replayed.stderr
    assert replayed.stdout.startswith(f"FAILED  {file.relative_to(folder)}\n")


@pytest.mark.slow
def test_interrupted_run_saves_its_failure(folder: Path) -> None:
    command = [SCRIPT, "run", "--target", "misbehaving.py:slower_and_wrong", "--max-time", "1800", "--workers", "2"]
    # A shell that starts the tests in the background makes its children ignore interrupts.
    interruptible = ["env", "--default-signal=INT", *command]
    process = subprocess.Popen(interruptible, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: "failure_found" in "".join(path.read_text() for path in folder.rglob("events.jsonl")))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=A_HANG)
    assert process.returncode == 1, output
    assert "Interrupted. Results so far:" in output
    assert "FAILED misbehaving.py:slower_and_wrong" in output
    assert list((folder / "tests" / "counterexamples").rglob("*.json"))


def test_json_and_junit(folder: Path) -> None:
    command = [SCRIPT, "run", "--target", "torch_attention.py:last_row_unwritten", "--max-cases", "2", "--workers", "1"]
    command += ["--seed", "1", "--json", "--junit", "results/junit.xml", "--out", "o"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert (document["ok"], document["exit_status"]) == (False, 1)
    (target,) = document["targets"]
    (failure, *_) = target["failures"]
    assert failure["kind"] == "oracle (unwritten)"
    assert (folder / failure["path"]).exists()
    assert "FAILED torch_attention.py:last_row_unwritten" in done.stderr
    (suite,) = ElementTree.parse(folder / "results" / "junit.xml").getroot()
    assert suite.attrib["failures"] == str(len(target["failures"]))
    found = suite.find("testcase/failure")
    assert found is not None
    assert found.attrib["type"] == "oracle (unwritten)"
    assert "Replay it" in (found.text or "")


def test_nothing_judged_is_an_error(folder: Path) -> None:
    # A launch hangs after 5 seconds at the least: the run must end before, but not before its first launch.
    command = [SCRIPT, "run", "--target", "misbehaving.py:hangs_always", "--max-time", "4.5", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.fullmatch(r"fuzz-attn: no case was judged: the first launch still ran after \d+ s\n", done.stderr)


def test_an_impossible_output_folder_is_one_line(folder: Path) -> None:
    command = [SCRIPT, "run", "--target", "unified", "--max-cases", "1", "--out", "torch_attention.py/below"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"fuzz-attn: .*torch_attention\.py/below/runs/\S+: cannot be made: .*\n", done.stderr)


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + A_HANG
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("broken_import.py:attend", "target='broken_import.py:attend' does not import: RuntimeError: no GPU here"),
        (
            "misbehaving:fits_no_family",
            "target='misbehaving:fits_no_family' has no parameter for query_start_loc or query_lens, ",
        ),
    ],
)
def test_run_reports_a_bad_target_in_one_line(target: str, message: str, call: Call) -> None:
    result = call("run", "--target", target)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"fuzz-attn: {message}")
    assert set(result.stdout.splitlines()[1:]) <= {"loading the target"}, "which is printed if it takes long"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "--family", "split"],
            "Invalid value for '--family': 'split' is not one of 'unified', 'paged', 'context', '",
        ),
        (["run", "--backend", "gpu"], "Invalid value for '--backend': 'gpu' is not one of 'auto', '"),
        (["run", "--max-time", "0"], "Invalid value for '--max-time': '0' must be a finite number above 0"),
        (["run", "--max-time", "nan"], "Invalid value for '--max-time': 'nan' must be a finite number above 0"),
        (["run", "--max-time", "soon"], "Invalid value for '--max-time': 'soon' must be a finite number above 0"),
        (["run", "--max-cases", "0"], "Invalid value for '--max-cases': 0 is not in the range 1<=x<="),
        (["run", "--max-cases", "many"], "Invalid value for '--max-cases': 'many' is not a valid integer range."),
        (["run", "--seed", "-1"], "Invalid value for '--seed': -1 is not in the range 0<=x<="),
        (["run", "--workers", "0"], "Invalid value for '--workers': '0' must be 'auto' or a number from 1 to"),
        (["run", "--workers", "all"], "Invalid value for '--workers': 'all' must be 'auto' or a number from 1 to"),
        (
            ["run", "--memory", "8"],
            "Invalid value for '--memory': '8' must be a size with a unit, such as 512M or 8G, or none",
        ),
        (
            ["run", "--memory", "0G"],
            "Invalid value for '--memory': '0G' must be a size with a unit, such as 512M or 8G, or none",
        ),
        (
            ["run", "--out", "torch_attention.py"],
            "Invalid value for '--out': Directory 'torch_attention.py' is a file.",
        ),
        (["run", "unified"], "Got unexpected extra argument (unified)"),
        (["show"], "Missing argument 'FILE'."),
        (["fly"], "No such command 'fly'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments(arguments: list[str], message: str, call: Call) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def damaged(save: Save, how: Callable[[str], str]) -> Path:
    path = save()
    path.write_text(how(path.read_text()))
    return path


DAMAGED = {
    "truncated": (lambda text: text[: len(text) // 2], r"is cut off or not JSON: "),
    "empty": (lambda text: "", r"is cut off or not JSON: "),
    "not JSON": (lambda text: "hello", r"is cut off or not JSON: "),
    "another JSON": (lambda text: "[1, 2]", r"is not a counterexample: Expected `object`, got `array`"),
    "newer": (lambda text: text.replace('"schema": 2', '"schema": 3'), r"schema=3 is newer than 2, the only one "),
    "older": (lambda text: text.replace('"schema": 2', '"schema": 1'), r"schema=1 is older than 2, the only one "),
    "nonsense": (
        lambda text: text.replace('"head_size": 8', '"head_size": -8'),
        r"Expected `int` >= 1 - at `\$\.case\.",
    ),
    "unknown field": (lambda text: text.replace('"block_size"', '"page_size"'), r"unknown field `page_size`"),
    "contradiction": (
        lambda text: text.replace('"heads"', '"scales": {"k": 2.0}, "heads"'),
        r"scales\.k=2\.0 must be 1",
    ),
}


@pytest.mark.parametrize("command", ["replay", "show"])
@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file_is_reported_in_one_line(name: str, command: str, call: Call, save: Save) -> None:
    how, message = DAMAGED[name]
    path = damaged(save, how)
    result = call(command, str(path))
    assert result.exit_code == 2
    line = one_line(result)
    assert line.startswith(f"fuzz-attn: {path}: ")
    assert re.search(message, line), line


@pytest.mark.parametrize("command", ["replay", "show"])
def test_missing_file_is_reported_in_one_line(command: str, call: Call) -> None:
    result = call(command, "gone.json")
    assert result.exit_code == 2
    assert one_line(result) in (
        "fuzz-attn: gone.json: does not exist",
        "fuzz-attn: gone.json: cannot be read: No such file or directory",
    )


def test_replay_of_files_and_folders(call: Call, save: Save, in_process: tuple[str, ...]) -> None:
    paths = [save(), save(kind="nan"), save(where="b")]
    expected = {"a file": (str(paths[0]), 1), "a folder": ("tests/counterexamples/a", 2), "by default": (None, 3)}
    for place, number in expected.values():
        result = call("replay", "--trust", *([place, *in_process] if place else []))
        assert result.exit_code == 1, result.stderr
        failed = re.findall(r"^FAILED  .*\.json\n        64 of 128 elements wrong", result.stdout, re.MULTILINE)
        assert len(failed) == number
        assert result.stdout.endswith(f"{number} replayed, {number} failed\n")


def test_replay_on_another_target(call: Call, save: Save, in_process: tuple[str, ...]) -> None:
    path = save("torch_attention.py:that_is_gone")
    result = call("replay", "--target", "torch_attention.py:unified_attention", str(path), *in_process)
    assert (result.exit_code, result.stdout) == (0, f"FIXED   {path}\n1 replayed, 0 failed\n")
    result = call("replay", "--trust", str(path))
    assert result.exit_code == 2
    assert one_line(result).endswith("torch_attention has no 'that_is_gone'")


def test_replay_reports_changed_tensors(call: Call, save: Save, in_process: tuple[str, ...]) -> None:
    path = save("torch_attention.py:unified_attention")
    path.write_text(path.read_text().replace('"digest": ""', '"digest": "0123456789abcdef"'))
    result = call("replay", "--trust", str(path), *in_process)
    assert result.exit_code == 0
    assert "the tensors differ from those that the case was saved with" in result.stdout


def test_replay_without_counterexamples(call: Call) -> None:
    result = call("replay")
    assert (result.exit_code, result.stdout) == (0, "no counterexamples: tests/counterexamples does not exist\n")


def test_show_prints_the_case_and_the_replay_command(call: Call, save: Save) -> None:
    path = save("some.module:attend")
    result = call("show", str(path))
    assert result.exit_code == 0
    for words in (
        "FAILED some.module:attend",
        "oracle (mismatch): as it was",
        "3 query tokens, 9 in the cache",
        "Replay it",
    ):
        assert words in result.stdout
    assert f"replay {path} --trust\n" in result.stdout
    assert re.search(r"Status open\. Found with python 3\.\d+", result.stdout)


def test_show_saves_a_picture(call: Call, save: Save, folder: Path) -> None:
    path = save("some.module:attend")
    result = call("show", str(path), "--svg", "failure.svg")
    picture = ElementTree.parse(folder / "failure.svg").getroot()
    words = " ".join("".join(picture.itertext()).replace("\N{NO-BREAK SPACE}", " ").split())
    assert f"fuzz-attn show {path}" in words, "the title"
    for word in set(result.stdout.split()):
        assert word in words
    assert "url(http" not in (folder / "failure.svg").read_text().replace('"', ""), "a font from a network"


def test_targets_lists_names_and_domains(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "target_names", lambda: ("unified",))  # each name needs a worker process
    monkeypatch.setattr("fuzz_attn.cli.targets.FAMILIES", ("unified",))
    result = call("targets")
    assert result.exit_code == 0
    assert result.stdout.startswith("unified (family unified)\n")
    for words in (
        "types of q    float32, float16, bfloat16",
        "head sizes    1 to 256",
        "features",
        "not drawn",
        "2d, 3d",
    ):
        assert words in result.stdout
    assert "Other targets: module:function and path.py:function" in result.stdout


@pytest.mark.parametrize("name", get_args(Family))
def test_what_a_family_promises_is_listed(name: Family) -> None:
    target = loading.load_target(name)
    ready = Ready(name, name, name, "simulator", domain=target.domain)
    words = text_of(domain_table(name, ready))
    assert words.startswith(f"{name} (family {name})\n")
    listed = {feature for feature in FEATURES_OF[name] if re.search(rf"\b{feature}\b", words)}
    assert listed == {feature for feature in FEATURES_OF[name] if target.domain.allows(feature)}
    assert f"launch paths  {', '.join(target.domain.paths)}" in words


@pytest.mark.parametrize("command", [(), *((name,) for name in main.commands)], ids=str)
def test_help_has_a_sentence_and_fits_into_80_columns(command: tuple[str, ...], call: Call) -> None:
    result = call(*command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert re.search(r"^  [A-Z].*\.", result.stdout, re.MULTILINE)


def test_every_option_has_a_help_text() -> None:
    bare = [
        f"{name} {option.opts[0]}"
        for name, command in main.commands.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert bare == []


def test_version(call: Call) -> None:
    assert re.fullmatch(r"fuzz-attn, version \d+\.\d+\.\d+\n", call("--version").stdout)


def test_mark_needs_a_reason_for_a_known_failure(call: Call, save: Save) -> None:
    path = save("mine")
    why = "--reference", "#7", "--because", "waits for a release"
    for arguments in ((), why[:2], why[2:]):
        refused = call("mark", str(path), "known", *arguments)
        assert refused.exit_code == 2
        assert "needs --reference '#12' and --because 'waits for the next release'" in refused.stderr
    assert call("mark", str(path), "fixed", *why).exit_code == 2
    assert counterexamples.load(path).status == "open"
    assert call("mark", str(path), "known", *why).exit_code == 0
    found = counterexamples.load(path)
    assert (found.status, found.reference, found.because) == ("known", "#7", "waits for a release")
    assert call("mark", str(path), "fixed").exit_code == 0
    assert counterexamples.load(path).reference == ""
