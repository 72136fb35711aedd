"""The page docs/evidence.md is made from the tables of evidence.json, short, and says where each figure comes from."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MOST_WORDS = 900
MEASURE = """python -c "import json, sys; json.dump({'rows': ROWS, 'not_found': 'two'}, open(sys.argv[2], 'w'))" """


@pytest.fixture(scope="module")
def evidence(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(HERE / "evidence.py")


@pytest.fixture(scope="module")
def tables(evidence: ModuleType) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = evidence.load()
    return found


def words_of(markdown: str) -> list[str]:
    """Return the words of a page: all but the rows of its tables, which also hold the commands of the runs."""
    return [word for line in markdown.splitlines() if not line.startswith("|") for word in line.split()]


def example(rows: str) -> dict[str, Any]:
    """Return a table of one run, whose command gives these rows."""
    run = {"command": "old", "commit": "1234567", "date": "2026-01-01", "machine": "a desk", "rows": [["1", "2"]]}
    runs = [run | {"not_found": "", "fresh": MEASURE.strip().replace("ROWS", rows)}]
    return {"name": "a", "title": "A", "shows": "It.", "columns": ["x", "y|z"], "gaps": "none.", "runs": runs}


def test_committed_page_is_made_from_the_tables(evidence: ModuleType, tables: list[dict[str, Any]]) -> None:
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert page == evidence.page(tables), "run `make evidence`"


def test_words_are_those_outside_of_tables() -> None:
    assert words_of("# A page\n\n| a | b |\n| --- | --- |\n| 1 | `make` |\n\nTwo `fuzz-attn run`.\n") == [
        *("#", "A", "page", "Two"),
        *("`fuzz-attn", "run`."),
    ]


def test_page_is_short(evidence: ModuleType, tables: list[dict[str, Any]]) -> None:
    assert len(words_of(evidence.page(tables))) <= MOST_WORDS


def test_every_figure_has_a_command_a_commit_and_a_machine(tables: list[dict[str, Any]]) -> None:
    for table in tables:
        assert table["title"], table["name"]
        assert table["shows"].endswith((".", "?")), table["name"]
        assert table["runs"], table["name"]
        for run in table["runs"]:
            assert run["command"], table["name"]
            assert run["machine"], table["name"]
            assert re.fullmatch("[0-9a-f]{7}", run["commit"]), table["name"]
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", run["date"]), table["name"]
            assert run["rows"], table["name"]
            assert {len(row) for row in run["rows"]} == {len(table["columns"])}, table["name"]


def test_every_table_says_what_is_missing(tables: list[dict[str, Any]]) -> None:
    assert [t["name"] for t in tables if not t["gaps"] and not any(run["not_found"] for run in t["runs"])] == []


def test_names_and_titles_are_unique(tables: list[dict[str, Any]]) -> None:
    for key in ("name", "title"):
        assert len({table[key] for table in tables}) == len(tables)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")
def test_commits_are_in_the_history(tables: list[dict[str, Any]]) -> None:
    commits = sorted({run["commit"] for table in tables for run in table["runs"]})
    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    if shallow.stdout.strip() == "true":
        pytest.skip("a shallow clone lacks them")
    # A commit outside of the history may still lie in this repository, as after a rebase, but is in no clone.
    ancestor = ["git", "merge-base", "--is-ancestor"]
    missing = [c for c in commits if subprocess.run([*ancestor, c, "HEAD"], cwd=ROOT, check=False).returncode != 0]
    assert not missing, "not in the history of HEAD"


def test_scripts_of_fresh_commands_take_the_option(tables: list[dict[str, Any]]) -> None:
    fresh = [run["fresh"] for table in tables for run in table["runs"] if run["fresh"]]
    scripts = {name for command in fresh for name in re.findall(r"tests/[\w/]+\.py", command)}
    assert len(scripts) >= 6
    for name in scripts:
        assert '"--json"' in (ROOT / name).read_text(encoding="utf-8"), name


def test_file_keeps_what_it_holds(evidence: ModuleType, tables: list[dict[str, Any]], tmp_path: Path) -> None:
    evidence.save(tables, tmp_path / "a.json")
    assert (tmp_path / "a.json").read_bytes() == (HERE / "evidence.json").read_bytes()
    odd = [example("[]") | {"shows": 'a "b", "c", \\ [ "d" ]'}]
    evidence.save(odd, tmp_path / "odd.json")
    assert json.loads((tmp_path / "odd.json").read_text())["tables"] == odd


def test_fresh_rows_replace_the_old_ones(evidence: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "commit_of", lambda: "7654321")
    table = example("[{'y|z': 4, 'x': 3, 'more': 5}]")
    run = evidence.measured(table, table["runs"][0])
    assert (run["rows"], run["not_found"], run["commit"]) == ([["3", "4"]], "two", "7654321")
    assert run["command"] == run["fresh"]
    assert run["date"] > "2026-01-01"
    assert "cores" in run["machine"]


def test_command_that_fails_ends_the_run(evidence: ModuleType) -> None:
    table = example("nothing")
    with pytest.raises(SystemExit, match="evidence: a: the command failed: python"):
        evidence.measured(table, table["runs"][0])


def test_page_of_a_table(evidence: ModuleType) -> None:
    table = example("[]")
    assert evidence.page([table]).removeprefix(evidence.INTRODUCTION) == (
        "\n## A\n\nIt.\n\n| x | y\\|z |\n| --- | --- |\n| 1 | 2 |\n\nGaps: none.\n\n"
        "| command | commit | date | machine |\n| --- | --- | --- | --- |\n| `old` | 1234567 | 2026-01-01 | a desk |\n"
    )
    table["runs"].append(table["runs"][0] | {"command": "by hand", "rows": [["5", "6"]], "not_found": "seven"})
    page = evidence.page([table])
    assert "| run | x | y\\|z |\n| --- | --- | --- |\n| 1 | 1 | 2 |\n| 2 | 5 | 6 |\n" in page
    assert "Missing: run 2: seven.\n" in page
    assert "| 2 | by hand | 1234567 |" in page


def test_runs_that_cannot_be_measured_are_named(
    evidence: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evidence, "visible_gpus", lambda _: [])
    table = example("[]")
    table["runs"] += [table["runs"][0] | {"needs_gpu": True}, table["runs"][0] | {"fresh": ""}]
    assert evidence.chosen([table], ["all"]) == [(table, 0)]
    assert evidence.chosen([table], ()) == []
    said = "a, run 2 stays as it is: it needs a GPU\na, run 3 stays as it is: no script measures it\n"
    assert capsys.readouterr().err == said
    with pytest.raises(SystemExit, match="evidence: no table b; there are a"):
        evidence.chosen([table], ["b"])


def test_changed_files_show_in_the_commit(evidence: ModuleType, tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "docs").mkdir()
    for name in ("code.py", "docs/evidence.md"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-m", "a")
    (tmp_path / "docs" / "evidence.md").write_text("2")
    assert re.fullmatch("[0-9a-f]{7}", evidence.commit_of(tmp_path))
    (tmp_path / "code.py").write_text("2")
    assert re.fullmatch("[0-9a-f]{7}-changed", evidence.commit_of(tmp_path))
