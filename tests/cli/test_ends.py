"""How commands end: one line for whatever is wrong, and exit status 1 for failing cases only."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.case.plain import LONGEST_NAME, shortened
from fuzz_attn.cli.guard import INTERNAL_ERROR, Program, SturdyStream
from fuzz_attn.cli.main import main
from fuzz_attn.cli.options import exits
from fuzz_attn.counterexamples import save, signed
from fuzz_attn.engine.run_folder import folder_name
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.report.run_documents import append_markdown, save_junit
from fuzz_attn.targets.target import slug_of

SCRIPT = str(Path(sys.executable).with_name("fuzz-attn"))
TORCH = Path(__file__).parents[1] / "sample_targets" / "torch_attention.py"
LONG = "x" * 5000


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a saved failure in the current folder, beside a folder and files that are no counterexamples."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("text").write_text("hello")
    Path("bytes").write_bytes(bytes(range(256)))
    case, verdict = AttentionCase((Sequence(1),)), Verdict("oracle", "nan", "NaN")
    return str(save(signed("unified", "unified", None, case, verdict), Path("saved")))


PLACES = ("", LONG, "a/" * 3000, "nul\0", "missing", "folder", "text", "bytes", "/dev/zero", "\udcff", "text/below")
READING: tuple[tuple[str, ...], ...] = (
    ("show", "{}"),
    ("explain", "{}"),
    ("export", "{}", "--script", "s.py"),
    ("mark", "{}", "open"),
    ("replay", "{}"),
    ("merge", "{}", "--out", "out"),
    ("report", "{}"),
    ("watch", "{}"),
    ("coverage", "{}"),
    ("audit", "--reasons", "{}"),
    ("audit", "--seeded", "--seeded-bugs", "{}"),
    ("ledger", "--ledger", "{}"),
    ("bind", "unified", "--binding", "{}"),
    ("run", "--target", "unified", "--binding", "{}"),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: arguments[0])
def test_no_readable_file_is_one_line_and_status_2(arguments: tuple[str, ...], file: str) -> None:
    for place in PLACES:
        done = CliRunner().invoke(main, [part.replace("{}", place) for part in arguments])
        assert done.exit_code == 2, (place[:20], done.output, done.exc_info)
        assert done.stderr.splitlines()[-1].startswith(("fuzz-attn: ", "Error: ")), (place[:20], done.stderr)


WRITING: tuple[tuple[str, ...], ...] = (
    ("show", "{file}", "--svg", "{}"),
    ("mark", "{file}", "known", "--reference", "#1", "--because", "{}"),
    ("ledger", "--pages", "--out", "{}"),
)


@pytest.mark.parametrize("arguments", WRITING, ids=lambda arguments: arguments[0])
def test_no_writable_file_is_one_line_and_status_2(arguments: tuple[str, ...], file: str) -> None:
    unwritable = ("\udcff", "nul\0") if arguments[0] == "mark" else ("", LONG, "nul\0", "text/below", "/proc/x/y")
    for place in unwritable:
        done = CliRunner().invoke(main, [part.replace("{file}", file).replace("{}", place) for part in arguments])
        assert done.exit_code == 2, (place[:20], done.output, done.exc_info)
        assert done.stderr.splitlines()[-1].startswith(("fuzz-attn: ", "Error: "))


@pytest.mark.parametrize("write", [lambda path: save_junit([], path), lambda path: append_markdown(path, "")])
def test_documents_that_cannot_be_written_are_errors_of_the_user(write: Callable[[Path], None], file: str) -> None:
    @click.group(cls=Program)
    def program() -> None: ...

    @program.command()
    @exits
    def command() -> int:
        write(Path(LONG))
        return 0

    done = CliRunner().invoke(program, ["command"])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.endswith("File name too long\n")
    assert len(done.stderr) < 1200, "the middle of a long name is left out"


NUMBERS = ("-1", "0", "nan", "inf", "1e999", "9" * 5000, "ten", "")


@pytest.mark.parametrize("option", ["--max-time", "--max-cases", "--workers", "--memory", "--until-flat", "--shard"])
def test_wrong_numbers_are_usage_errors(option: str, file: str) -> None:
    for number in NUMBERS:
        done = CliRunner().invoke(main, ["run", option, number, "--target", "missing.py:attend"])
        assert done.exit_code == 2, (number[:10], done.output)
        assert "missing.py" in done.stderr or f"Invalid value for '{option}'" in done.stderr, (number[:10], done.stderr)


def _ending(error: BaseException) -> Result:
    @click.group(cls=Program)
    def program() -> None: ...

    @program.command()
    @exits
    def command() -> int:
        raise error

    return CliRunner().invoke(program, ["command"])


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
        (OSError(28, "No space left on device", "a.json"), 2, "fuzz-attn: a.json: No space left on device\n"),
        (MemoryError(), 2, "fuzz-attn: no memory is left\n"),
        (click.ClickException("no"), 2, "Error: no\n"),
        (BrokenPipeError(32, "Broken pipe"), 2, "fuzz-attn: Broken pipe\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_status_of_an_exception(error: BaseException, status: int, line: str) -> None:
    done = _ending(error)
    assert (done.exit_code, done.stderr) == (status, line)


def test_a_defect_is_one_line_that_names_a_file_with_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = _ending(ZeroDivisionError("by\nnothing"))
    assert done.exit_code == INTERNAL_ERROR
    (saved,) = tmp_path.iterdir()
    expected = f"fuzz-attn: internal error: ZeroDivisionError: by nothing; please report it with {saved}\n"
    assert done.stderr == expected
    assert "raise error" in saved.read_text()


def test_a_stream_that_breaks_keeps_its_first_error() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    stream = SturdyStream(Full())
    assert stream.write("all") == 3
    stream.flush()
    assert stream.error == "No space left on device"


RUN = ("run", "--target", f"{TORCH}:last_row_unwritten", "--max-cases", "3", "--seed", "1", "--workers", "1")


def test_a_run_whose_output_is_full_keeps_its_failure(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [SCRIPT, *RUN, "--out", str(tmp_path)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "fuzz-attn: standard output cannot be written: No space left on device\n",
    )
    assert list((tmp_path / "counterexamples").rglob("*.json"))


def _closed_pipe() -> dict[str, Any]:
    read, write = os.pipe()
    os.close(read)
    return {"stdout": write}


def _closed() -> dict[str, Any]:
    return {"preexec_fn": lambda: os.close(1)}


@pytest.mark.parametrize(
    ("how", "why"), [(_closed_pipe, "Broken pipe"), (_closed, "it is closed")], ids=["pipe", "closed"]
)
def test_an_output_that_nobody_reads(how: Callable[[], dict[str, Any]], why: str) -> None:
    options = how()
    done = subprocess.run([SCRIPT, "--help"], **options, stderr=subprocess.PIPE, text=True, check=False)
    if "stdout" in options:
        os.close(options["stdout"])
    assert (done.returncode, done.stderr) == (2, f"fuzz-attn: standard output cannot be written: {why}\n")


@pytest.mark.parametrize(
    ("broken", "status", "line"),
    [
        ("raise ImportError('no\\nmemory')", 2, "fuzz-attn: cannot be started: ImportError: no memory\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_what_cannot_be_imported_is_one_line_and_not_status_1(
    broken: str, status: int, line: str, tmp_path: Path
) -> None:
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text(broken)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([SCRIPT, "--help"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", line)


SIGNAL_AT_THE_END = """
import os, sys, {when}
from fuzz_attn.cli import main, start
class Late:
    def __del__(self, kill=os.kill, process=os.getpid()):
        kill(process, {number})
late = Late()
main.main = lambda: sys.exit(1)
atexit.register(os.kill, os.getpid(), {number}) if {when!r} == "atexit" else None
start.start()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("when", ["atexit", "gc"])
def test_a_signal_while_python_ends_does_not_change_the_status(when: str, number: signal.Signals) -> None:
    script = SIGNAL_AT_THE_END.format(when=when, number=int(number))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_show_needs_no_numpy(file: str) -> None:
    """Its library ends the process with status 1 where memory is short."""
    script = "import sys; sys.modules['numpy'] = None; from fuzz_attn.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", script, "show", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" show x.json'
    done = subprocess.run(["sh", "-c", script, SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "fuzz-attn: the current folder: No such file or directory\n")


def test_names_of_any_length_are_names_of_files(tmp_path: Path) -> None:
    for name in (LONG, "é" * 200, "a/" * 3000 + "k.py:attend", "\U0001f600" * 80):
        for made in (slug_of(name), folder_name(name), shortened(name)):
            assert len(made.encode()) <= LONGEST_NAME
    (tmp_path / slug_of(LONG)).mkdir()
    assert slug_of(LONG) != slug_of(f"{LONG}y")
    assert slug_of("my/kernel.py:attend") == "my-kernel.py-attend"
