"""`fuzz-attn bind`: the table of a binding, and the exit status where nothing fits. Also the files of the docs."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fuzz_attn.binding.binding import binding_of, read_binding
from fuzz_attn.cli.main import main
from fuzz_attn.errors import BindingError

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "sample_targets" / "invented_names.py"


@pytest.fixture
def bind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Return a function that runs `fuzz-attn bind` in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, ["bind", *map(str, arguments)])


def test_table_names_role_and_reason(bind: Callable[..., Result]) -> None:
    done = bind(f"{FILE}:ragged_paged", "--binding", FILE.with_suffix(".toml"))
    assert done.exit_code == 0, done.output
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    assert ["parameter", "role", "why"] in rows
    assert ["asks", "query", "stated"] in rows
    assert ["sinks", "sinks", "name"] in rows
    assert "A window counts the keys before a row's own (calibrated).\n" in done.stdout
    assert done.stdout.count("A window counts") == 1
    assert "\nScales divide (calibrated).\n" in done.stdout


def test_what_does_not_fit_is_one_line_and_status_2(bind: Callable[..., Result]) -> None:
    done = bind(f"{FILE}:ragged_paged")
    assert done.exit_code == 2
    assert "requires parameter 'asks', which has no role; state it in a binding file" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layout = ", "cannot be read: Invalid value"),
        ("colour = 3", "has an unknown key 'colour'; known are: family, roles, constants, tensors, sizes, paths, "),
        ("[tensors]\na = { size = [1] }", "binding: Object contains unknown field `size` - at `$.tensors[...]`"),
    ],
)
def test_wrong_file_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(BindingError, match=re.escape(message)) as raised:
        read_binding(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BindingError, match=r"absent\.toml: cannot be read: No such file or directory"):
        read_binding(tmp_path / "absent.toml")


def test_files_of_the_docs_are_bindings() -> None:
    text = (ROOT / "docs" / "bindings.md").read_text()
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE)
    files = [block.replace("    ", "").strip() for block in blocks if "\n    [" in f"\n{block}"]
    files = [file[file.index("[") :] for file in files]
    assert len(files) == 3
    for file in files:
        assert binding_of(tomllib.loads(file)) is not None
