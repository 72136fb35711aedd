"""``fuzz-attn replay``: files that cannot be replayed, folders without files, and targets that need trust."""

from __future__ import annotations

import html
import os
import re
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner, Result

from fuzz_attn import counterexamples
from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import HeadLayout, LaunchHints, Sequence
from fuzz_attn.case.recipes import SinkRecipe
from fuzz_attn.cli.main import main
from fuzz_attn.counterexamples import is_installed
from fuzz_attn.foreign_files import ENTRY_POINT_GROUP
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.report import summary
from fuzz_attn.report.printing import save_picture

TARGETS = Path(__file__).parents[1] / "sample_targets"

Save = Callable[..., Path]
Options = tuple[str, ...]
SLEEPS = """
import time
from functools import wraps
from torch_attention import unified_attention

@wraps(unified_attention)
def sleeps(**given):
    time.sleep(3600)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which contains the targets."""
    shutil.copy(TARGETS / "torch_attention.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def save(folder: Path, case: AttentionCase) -> Save:
    """Return a function that saves a counterexample of a target."""

    def saved(name: str, target: str = "torch_attention.py:unified_attention", relation: str | None = None) -> Path:
        verdict = Verdict("oracle", "mismatch", "as it was")
        found = counterexamples.signed(target, "unified", relation, case, verdict)
        path = counterexamples.save(found, folder / "saved")
        return path.rename(folder / "saved" / name)

    return saved


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


def errors_of(result: Result) -> list[str]:
    """Return the lines of standard error, without those that a slow machine prints while it waits."""
    return [line for line in result.stderr.splitlines() if not line.startswith("Replaying ")]


def test_a_bad_file_is_named_and_the_others_are_replayed(save: Save, folder: Path) -> None:
    save("a.json")
    (folder / "saved" / "b.json").write_text("{")
    save("c.json", "torch_attention.py:that_is_gone")
    save("d.json", relation="speed")
    save("e.json")
    result = replay("--trust", folder / "saved")
    assert result.exit_code == 2
    assert result.stdout.count("FIXED") == 2
    assert result.stdout.endswith("2 replayed, 0 failed, 3 not replayed\n")
    cut_off, gone, speed = errors_of(result)
    assert cut_off.startswith(f"fuzz-attn: {folder}/saved/b.json: is cut off or not JSON: ")
    assert gone.startswith(f"fuzz-attn: {folder}/saved/c.json: target=")
    assert gone.endswith("has no 'that_is_gone'")
    assert speed.startswith(f"fuzz-attn: {folder}/saved/d.json: relation='speed' must be one of: ")


def test_a_failure_counts_more_than_a_bad_file(save: Save, folder: Path) -> None:
    save("a.json", "torch_attention.py:last_row_unwritten")
    (folder / "saved" / "b.json").write_text("{}")
    result = replay("--trust", folder / "saved")
    assert (result.exit_code, len(errors_of(result))) == (1, 1)
    assert result.stdout.endswith("1 replayed, 1 failed, 1 not replayed\n")


def test_a_mark_hides_no_other_failure(save: Save, folder: Path) -> None:
    path, report = save("a.json", "torch_attention.py:last_row_unwritten"), folder / "report.md"
    marks = {"status": "known", "reference": "#7", "because": "waits"}
    counterexamples.overwrite(msgspec.structs.replace(counterexamples.load(path), **marks), path)
    result = replay("--trust", "--annotations", "--markdown", report, path)
    assert result.exit_code == 1
    assert result.stdout.startswith("CHANGED")
    words = "it fails in another way than the file says (oracle (mismatch)): oracle (unwritten): "
    assert words in " ".join(result.stdout.split())
    assert f"::error file={path},title=CHANGED%3A torch_attention.py%3Alast_row_unwritten::{words}" in result.stdout
    assert "| CHANGED |" in report.read_text()


def test_a_limit_of_a_launch_ends_a_hang_and_the_wait_is_shown(
    save: Save, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "PIPE_SECONDS", 0.2)
    (folder / "sleeps.py").write_text(SLEEPS)
    result = replay("--trust", "--launch-limit", "2", save("a.json", "sleeps.py:sleeps"))
    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert "the launch did not end within 2 s" in result.stdout
    lines = result.stderr.splitlines()
    assert len(lines) > 2
    assert all(re.fullmatch(r"Replaying .*/a\.json, since \d+ s", line) for line in lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ("replay", ""),
        ("replay", "a.json", ""),
        ("show", ""),
        ("explain", ""),
        ("mark", "", "open"),
        ("export", "", "--script", "a.py"),
        ("export", "a.json", "--script", ""),
        ("merge", "", "--out", "merged"),
        ("merge", "reports", "--out", ""),
        ("report", ""),
        ("coverage", ""),
        ("run", "--out", ""),
        ("run", "--junit", ""),
        ("run", "--binding", "", "--target", "a.py:f"),
        ("replay", "--markdown", ""),
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused(arguments: Options) -> None:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 2
    assert "the path is empty, as that of a variable that is not set" in " ".join(result.output.split()).replace(
        "│ ", ""
    )


def test_a_case_that_the_target_refuses_now_is_no_failure(save: Save, folder: Path) -> None:
    shutil.copy(TARGETS / "refusing.py", folder)
    result = replay("--trust", save("a.json", "refusing.py:refuses_all"))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("REFUSED")
    assert "the target or the compiler refuses the case" in result.stdout
    assert result.stdout.endswith("1 replayed, 0 failed\n")


LIMITED = """
from fuzz_attn.targets import Domain, Target
from torch_attention import last_row_unwritten

limited = Target("limited", last_row_unwritten, domain=Domain(features=frozenset({"window"}), {limits}))
"""


@pytest.mark.parametrize(
    ("changes", "limits", "lacking"),
    [
        ({"sinks": SinkRecipe()}, "", "sinks"),
        ({"padded_tokens": 1}, "", "padded rows of q and out"),
        ({"heads": HeadLayout(head_size=32)}, "head_sizes=(64,)", "heads of 32"),
        ({"window": 3}, "", ""),
        ({"launch": LaunchHints(path="3d")}, "", ""),
    ],
)
def test_a_case_that_the_target_does_not_promise_is_no_failure(
    changes: dict[str, Any], limits: str, lacking: str, save: Save, folder: Path, in_process: Options
) -> None:
    (folder / "limited.py").write_text(LIMITED.replace("{limits}", limits))
    path = save("a.json", "limited.py:limited")
    case = AttentionCase(**({"sequences": (Sequence(3, 9),)} | changes))
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(counterexamples.load(path), case=case)))
    result = replay("--trust", path, *in_process)
    if lacking:
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("REFUSED")
        assert f"the target does not promise {lacking}\n" in result.stdout
    else:
        assert result.exit_code == 1, result.output
        assert result.stdout.startswith("FAILED")


def test_an_empty_folder_is_an_error(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "empty" / "notes.txt").write_text("")
    result = replay("empty")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "fuzz-attn: empty: holds no .json file\n")


def test_a_default_folder_without_files_is_no_error(folder: Path) -> None:
    (folder / "tests" / "counterexamples").mkdir(parents=True)
    result = replay()
    assert (result.exit_code, result.stdout) == (0, "no counterexamples: tests/counterexamples holds none\n")


@pytest.mark.parametrize(
    "target", ["marked.py:attend", "marked:attend", "./marked.py:attend", "{folder}/marked.py:attend"]
)
def test_the_code_of_a_foreign_target_runs_only_with_trust(
    target: str, save: Save, folder: Path, in_process: Options
) -> None:
    (folder / "marked.py").write_text(
        "from pathlib import Path\nPath('imported').touch()\nfrom torch_attention import unified_attention as attend\n"
    )
    target = target.format(folder=folder)
    path = save("a.json", target)
    result = replay(path)
    assert (result.exit_code, result.stdout) == (2, "")
    reason = (
        f"names target={target!r}, and a file does not choose what code runs: add --target {target}, or --trust if you "
        "trust the file, or name the target in [tool.fuzz_attn]"
    )
    assert result.stderr == f"fuzz-attn: {path}: {reason}\n"
    assert not (folder / "imported").exists()
    assert replay(path, "--target", "unified", *in_process).exit_code == 0
    assert not (folder / "imported").exists()
    assert replay(path, "--trust", *in_process).exit_code == 0
    assert (folder / "imported").exists()


def test_the_target_of_the_settings_needs_no_trust(save: Save, folder: Path, in_process: Options) -> None:
    path = save("a.json")
    assert replay(path, *in_process).exit_code == 2
    (folder / "pyproject.toml").write_text('[tool.fuzz_attn]\ntarget = "torch_attention.py:unified_attention"\n')
    assert replay(path, *in_process).exit_code == 0


HOSTILE = {
    "subprocess:run": Binding(whole=True, constants={"args": "touch canary", "shell": True}),
    "os:system": Binding(whole=True, constants={"command": "touch canary"}),
    "subprocess:Popen.communicate": Binding(whole=True, instance={"args": "touch canary", "shell": True}),
    "builtins:exec": Binding(whole=True, constants={"source": "open('canary', 'w')"}),
}


@pytest.mark.parametrize("target", HOSTILE)
@pytest.mark.parametrize("command", ["replay", "explain", "export", "show"])
def test_a_file_runs_no_command(command: str, target: str, save: Save, folder: Path, in_process: Options) -> None:
    """A file that names an installed function and chooses its arguments, or those of a constructor."""
    path = save("a.json", target)
    found = msgspec.structs.replace(counterexamples.load(path), binding=HOSTILE[target])
    path.write_bytes(msgspec.json.encode(found))
    options = {"replay": in_process, "export": ("--script", "script.py")}.get(command, ())
    result = CliRunner().invoke(main, [command, str(path), *options])
    assert result.exit_code == (0 if command == "show" else 2), result.output
    assert "Traceback" not in result.output
    assert not (folder / "canary").exists()
    assert not (folder / "script.py").exists()
    if command != "show":
        assert "a file does not choose what code runs" in result.stderr


@pytest.mark.parametrize(
    ("binding", "chosen"),
    [
        (Binding(constants={"path": "/etc/passwd"}), "constants.path"),
        (Binding(constants={"debug": True}), "constants.debug"),
        (Binding(instance={}), "instance"),
        (Binding(off={"window": "os.system"}), "off.window"),
        (Binding(off={"window": ("a", 1)}), "off.window"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "explain", "export"])
def test_a_file_does_not_choose_what_the_users_own_target_gets(
    command: str, binding: Binding, chosen: str, save: Save, folder: Path, in_process: Options
) -> None:
    target = "torch_attention.py:unified_attention"
    path = save("a.json", target)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(counterexamples.load(path), binding=binding)))
    options = {"replay": in_process, "export": ("--script", "script.py")}.get(command, ())
    result = CliRunner().invoke(main, [command, str(path), "--target", target, *options])
    reason = f"its binding chooses what the target gets ({chosen}): add --binding FILE with your own, or --trust"
    assert result.exit_code == 2, result.output
    assert reason in result.stderr


def test_a_binding_that_only_says_how_is_used(save: Save, folder: Path, in_process: Options) -> None:
    target = "torch_attention.py:unified_attention"
    path = save("a.json", target)
    binding = Binding(layout="rows", window="pair", off={"window": (-1, -1)})
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(counterexamples.load(path), binding=binding)))
    assert replay(path, "--target", target, *in_process).exit_code == 0


def test_a_built_in_target_takes_no_binding_of_the_user(save: Save, folder: Path) -> None:
    """Each command that takes one says so; the binding of a file for another target is left out."""
    (folder / "how.toml").write_text('layout = "rows"\n')
    built_in, other = save("a.json", "unified"), save("b.json")
    file = msgspec.structs.replace(counterexamples.load(other), binding=Binding(layout="rows"))
    other.write_bytes(msgspec.json.encode(file))
    reason = "binding={'layout': 'rows'} must not be stated for target='unified', which is built in"
    for arguments in (
        ("run", "--target", "unified", "--max-cases", "1"),
        ("bind", "unified"),
        ("replay", str(built_in)),
        ("explain", str(built_in)),
        ("export", str(built_in), "--script", "script.py"),
    ):
        done = CliRunner().invoke(main, [*arguments, "--binding", "how.toml"])
        assert done.exit_code == 2, (arguments, done.output)
        assert reason in done.stderr, arguments
    assert replay(other, "--target", "unified").exit_code == 0


@pytest.mark.parametrize(
    ("target", "installed"),
    [
        ("unified", True),
        ("chunked", True),
        ("numpy:dot", False),
        ("subprocess:run", False),
        ("fuzz_attn.kernels.unified_attention:unified_attention", False),
        ("torch_attention:unified_attention", False),
        ("torch_attention.py:unified_attention", False),
        ("/usr/lib/python3/evil.py:attend", False),
        ("../evil:attend", False),
        ("vllm==0.11.0:vllm.attention:attend", False),
        ("checkout::vllm.attention:attend", False),
        ("unknown", False),
        ("", False),
        (":", False),
    ],
)
def test_only_what_the_user_has_installed_as_a_target_is_trusted(
    target: str, installed: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    assert is_installed(target) is installed


@pytest.mark.parametrize("hidden", [False, True])
def test_an_entry_point_of_an_installed_package_is_trusted_unless_the_current_folder_hides_it(
    hidden: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [point for point in entry_points(group="console_scripts") if point.name == "f2py"]
    monkeypatch.setattr(counterexamples, "target_points", lambda: points)
    if hidden:
        (folder / "numpy.py").write_text("")
    monkeypatch.syspath_prepend(str(folder))
    assert is_installed("f2py") is not hidden


def test_an_entry_point_of_the_current_folder_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "planted-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nplanted = numpy:dot\n")
    monkeypatch.syspath_prepend(str(folder))
    assert not is_installed("planted")


def test_texts_of_a_target_are_neither_markup_nor_escape_sequences(save: Save, folder: Path) -> None:
    text = "[bold]loud[/bold] [/nothing] :boom: \x1b[31mred\x1b]0;title\x07 \x9b2J \r\n\x08over"
    (folder / "loud.py").write_text(
        "from functools import wraps\nfrom torch_attention import unified_attention\n"
        f"@wraps(unified_attention)\ndef attend(**given):\n    raise LookupError({text!r})\n"
    )
    path = save("[red]a[bold].json", "loud.py:attend")
    result = replay(path, "--trust")
    assert result.exit_code == 1, result.output
    assert "[red]a[bold].json" in result.stdout
    printed = " ".join(result.stdout.split())
    assert r"[bold]loud[/bold] [/nothing] :boom: \x1b[31mred\x1b]0;title" in printed
    assert r"\x9b2J" in printed
    assert not [character for character in result.stdout if not character.isprintable() and character != "\n"]


def test_an_error_of_a_target_is_printed_without_escape_sequences(save: Save, folder: Path) -> None:
    (folder / "loud.py").write_text("raise ImportError('\\x1b[31mred\\x1b]0;title\\x07')\n")
    result = replay(save("a.json", "loud.py:attend"), "--trust")
    assert result.exit_code == 2
    assert r"ImportError: \x1b[31mred\x1b]0;title\x07" in result.stderr
    assert "\x1b" not in result.stderr


def test_a_picture_of_a_text_with_escape_sequences_is_valid(tmp_path: Path) -> None:
    save_picture("\x1b[31mred [bold]\x00\x9b", tmp_path / "a.svg", title="\x1b]0;title\x07 [bold]")
    words = " ".join("".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext()).split())
    assert r"\x1b[31mred" in words
    assert "[bold]" in words


def test_the_title_of_a_picture_leaves_room_for_the_buttons(tmp_path: Path) -> None:
    """Rich centres it over the terminal's 110 columns; a bold letter may be as wide as a column."""
    save_picture("text", tmp_path / "a.svg", title=f"fuzz-attn explain {'folder/' * 40}case.json")
    (title,) = re.findall(r'-title"[^>]*>(.*?)</text>', (tmp_path / "a.svg").read_text(encoding="utf-8"))
    shown = html.unescape(title).replace("\u00a0", " ")
    assert shown.startswith("fuzz-attn explain folder/")
    assert shown.endswith("folder/case.json")
    assert "…" in shown
    assert len(shown) <= 102


def test_the_mode_of_a_saved_file_is_that_of_the_umask(save: Save) -> None:
    before = os.umask(0o027)
    try:
        assert save("a.json").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)
