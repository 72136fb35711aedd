"""Settings in a user's pyproject.toml: what they may hold, and what wins over them."""

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from fuzz_attn.binding.binding import read_binding
from fuzz_attn.cli import run as run_module
from fuzz_attn.cli.main import main
from fuzz_attn.cli.run import Request
from fuzz_attn.errors import SettingsError
from fuzz_attn.settings import NO_DEFAULTS, Settings, load_settings

DOCS = Path(__file__).parents[2] / "docs"

ALL = """
[tool.fuzz_attn]
target = ["a.py:one", "b.py:two"]
family = "paged"
backend = "interpreter"
max-time = 30
max-cases = 500
workers = 2
out = "results"
memory = "4G"
"""

MORE = """
[tool.fuzz_attn]
target = "a.py:one"
binding = "binding.toml"
until_flat = 20
continue = true
seed = 7
gpu_share = 0.5
mps = false
strict = true
junit = "results.xml"
markdown = "results.md"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Return the list of the requests that ``fuzz-attn run`` makes; none is carried out."""
    made: list[Request] = []

    def kept(request: Request) -> int:
        made.append(request)
        return 0

    monkeypatch.setattr(run_module, "run_campaigns", kept)
    monkeypatch.setattr(run_module, "_check_target", lambda *arguments: None)
    return made


def test_settings_are_the_defaults_of_run(folder: Path, requests: list[Request]) -> None:
    (folder / "pyproject.toml").write_text(ALL)
    result = CliRunner().invoke(main, ["run"])
    assert result.exit_code == 0, result.output
    (request,) = requests
    assert request.targets == ("a.py:one", "b.py:two")
    assert (request.family, request.backend, request.workers) == ("paged", "interpreter", 2)
    assert (request.max_time, request.max_cases, request.out) == (30.0, 500, Path("results"))
    assert request.memory == 4 * 2**30


def test_every_option_that_makes_sense_has_a_default(folder: Path, requests: list[Request]) -> None:
    (folder / "pyproject.toml").write_text(MORE)
    (folder / "binding.toml").write_text('whole = true\n[roles]\nq = "query"\n')
    result = CliRunner().invoke(main, ["run"])
    assert result.exit_code == 0, result.output
    (request,) = requests
    assert (request.seed, request.until_flat, request.max_time) == (7, 20.0, None)
    assert (request.continued, request.mps, request.strict) == (True, False, True)
    assert (request.documents.junit, request.documents.markdown) == (Path("results.xml"), Path("results.md"))
    assert request.binding is not None
    other = CliRunner().invoke(main, ["run", "--target", "b.py:two", "--seed", "8"])
    assert other.exit_code == 0, other.output
    assert (requests[1].binding, requests[1].seed) == (None, 8), "the settings state the binding of their own target"


def test_settings_name_all_options_of_run() -> None:
    options = {each.opts[-1].removeprefix("--") for each in main.commands["run"].params}
    named = {field.encode_name for field in msgspec.structs.fields(Settings)}
    assert options - set(NO_DEFAULTS) - {"help"} == named


def test_snippets_of_the_documents_are_accepted(folder: Path) -> None:
    seen = set()
    for page in sorted(DOCS.glob("*.md")):
        for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", page.read_text(), re.MULTILINE):
            text = "\n\n".join(part for part in dedent(block).split("\n\n") if part.lstrip().startswith("["))
            for table in re.findall(r"^\[([a-z_.]+)\]$", text, re.MULTILINE)[:1]:
                name = "pyproject.toml" if table == "tool.fuzz_attn" else "binding.toml"
                (folder / name).write_text(text)
                assert load_settings() != Settings() if name == "pyproject.toml" else read_binding(folder / name), page
                seen.add((page.name, table))
    assert ("commands.md", "tool.fuzz_attn") in seen
    assert len({page for page, _ in seen}) >= 3, "pages that have TOML: commands, bindings, rounding"


@pytest.mark.parametrize(("arguments", "size"), [((), 8 * 2**30), (("--memory", "none"), 0)])
def test_a_run_limits_memory_by_default(
    arguments: tuple[str, ...], size: int, folder: Path, requests: list[Request]
) -> None:
    result = CliRunner().invoke(main, ["run", *arguments])
    assert result.exit_code == 0, result.output
    assert [request.memory for request in requests] == [size]


def test_the_command_line_wins(folder: Path, requests: list[Request]) -> None:
    (folder / "pyproject.toml").write_text(ALL)
    (folder / "below").mkdir()
    options = ["--target", "unified", "--backend", "auto", "--max-time", "5", "--workers", "1", "--out", "here"]
    result = CliRunner().invoke(main, ["run", *options])
    assert result.exit_code == 0, result.output
    (request,) = requests
    assert request.targets == ("unified",)
    assert request.family is None, "the settings name it for their own target"
    assert (request.backend, request.max_time, request.max_cases) == ("auto", 5.0, 500)
    assert (request.workers, request.out) == (1, Path("here"))


def test_the_nearest_file_counts(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.fuzz_attn]\ntarget = "mine.py:attend"\n')
    (folder / "a" / "b").mkdir(parents=True)
    assert load_settings(folder / "a" / "b").targets == ("mine.py:attend",)
    (folder / "a" / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert load_settings(folder / "a" / "b") == Settings()


WRONG: dict[str, tuple[str, str]] = {
    "unknown key": (
        "[tool.fuzz_attn]\nmax_times = 3",
        r"\[tool\.fuzz_attn\] has an unknown key 'max_times'; known are: target, family, binding, backend, max-time, ",
    ),
    "twice": ("[tool.fuzz_attn]\nmax_time = 3\nmax-time = 3", r"has 'max-time' twice, with a dash and with an under"),
    "of one run": ("[tool.fuzz_attn]\nshard = '1/2'", r"'shard' is no default of a project: give it to each run"),
    "endless": ("[tool.fuzz_attn]\nmax_time = inf", r"Expected `float` <= 1000000000(\.0)? - at `\$\.max-time`"),
    "memory": ("[tool.fuzz_attn]\nmemory = 'all'", r"\[tool\.fuzz_attn\] 'all' must be a size with a unit"),
    "family": ("[tool.fuzz_attn]\nfamily = 'split'", r"Invalid enum value 'split' - at `\$\.family`"),
    "time": ("[tool.fuzz_attn]\nmax-time = 0", r"Expected `float` > 0(\.0)? - at `\$\.max-time`"),
    "workers": ("[tool.fuzz_attn]\nworkers = 'all'", r"at `\$\.workers`"),
    "no TOML": ("[tool", r"cannot be read: "),
    "no table": ("[tool]\nfuzz_attn = 3", r"\[tool\.fuzz_attn\] must be a table"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_one_line(name: str, folder: Path) -> None:
    text, message = WRONG[name]
    (folder / "pyproject.toml").write_text(text + "\n")
    with pytest.raises(SettingsError, match=message):
        load_settings()
    result = CliRunner().invoke(main, ["run"])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"fuzz-attn: {folder / 'pyproject.toml'}: ")


def test_other_commands_do_not_read_the_settings(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.fuzz_attn]\nnonsense = 1\n")
    result: Any = CliRunner().invoke(main, ["replay"])
    assert result.exit_code == 0
