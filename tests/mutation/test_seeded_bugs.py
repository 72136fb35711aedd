"""Seeded bugs: every edit fits our kernels, and an anchor that does not fit is an error."""

import ast
import inspect
from pathlib import Path

import pytest

from fuzz_attn.errors import SeededBugError
from fuzz_attn.mutation.edited_kernels import target_with
from fuzz_attn.mutation.seeded_bugs import Edit, SeededBug, edited_copy, edited_texts, load_seeded_bugs, seeded_bug
from fuzz_attn.operations.registry import FAMILIES
from fuzz_attn.targets.loading import load_target

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"
FOLDER = ROOT / "fuzz_attn" / "mutation" / "seeded" / "tables"
BUGS = load_seeded_bugs(FOLDER)


def bug_of(*edits: Edit) -> SeededBug:
    return SeededBug(("unified",), "wrong", "shown", edits, name="made_up")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_edits_fit_the_kernels(bug: SeededBug) -> None:
    for file, text in edited_texts(bug, KERNELS).items():
        assert text != (KERNELS / file).read_text()
        ast.parse(text)


def test_a_copy_differs_in_the_edited_files(tmp_path: Path) -> None:
    bug = next(bug for bug in BUGS if len({edit.file for edit in bug.edits}) > 1)
    copy = edited_copy(bug, KERNELS, tmp_path / "kernels")
    files = {str(path.relative_to(KERNELS)): path.read_text() for path in KERNELS.rglob("*.py")}
    assert files | edited_texts(bug, KERNELS) == {file: (copy / file).read_text() for file in files}
    assert set(edited_texts(bug, KERNELS)) == {edit.file for edit in bug.edits}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_many_bugs(family: str) -> None:
    fewer = {  # they have fewer features
        "extend": 45,
        "mla_decode": 30,
        "token_decode": 55,
        "varlen": 45,
        "merge_states": 20,
        "cache_write": 35,
    }
    assert sum(family in bug.families for bug in BUGS) >= fewer.get(family, 60)


@pytest.mark.parametrize(("anchor", "times"), [("no such text", 0), ("import", 2)])
def test_an_anchor_must_occur_once(anchor: str, times: int, tmp_path: Path) -> None:
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    (kernels / "a.py").write_text("import one\nimport two\n")
    with pytest.raises(SeededBugError, match=f"anchor '{anchor}' occurs {times} times in a.py"):
        edited_copy(bug_of(Edit("a.py", anchor, "x")), kernels, tmp_path / "copy")


def test_a_missing_file_has_no_anchor(tmp_path: Path) -> None:
    with pytest.raises(SeededBugError, match=r"occurs 0 times in gone\.py"):
        edited_copy(bug_of(Edit("gone.py", "import", "x")), KERNELS, tmp_path / "copy")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "holds no seeded bug"),
        ({"a.toml": "[one]\nwrong = 1"}, "seeded bugs '.*a.toml'"),
        ({"a.toml": "\udcff"}, "seeded bugs '.*a.toml'"),
        ({"a.toml": "{one}", "b.toml": "{one}"}, "seeded bug 'one' occurs in a.toml and in b.toml"),
    ],
)
def test_a_folder_that_cannot_be_read(files: dict[str, str], reason: str, tmp_path: Path) -> None:
    one = '[one]\nfamilies = ["unified"]\nwrong = "w"\nshown_by = "s"\nedits = []\n'
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.replace("{one}", one).encode(errors="surrogateescape"))
    with pytest.raises(SeededBugError, match=reason):
        load_seeded_bugs(tmp_path)


def test_a_bug_that_does_not_exist() -> None:
    with pytest.raises(SeededBugError, match="seeded bug 'unknown' is not in the folder"):
        seeded_bug(FOLDER, "unknown")


def test_edited_kernels_are_packages_of_their_own(tmp_path: Path) -> None:
    bug = seeded_bug(FOLDER, "causal_or_equal")
    one, two = (target_with(bug, "unified", tmp_path) for _ in range(2))
    healthy = load_target("unified")
    calls = {one.call, two.call, healthy.call}
    assert len(calls) == 3
    assert len({call.__module__ for call in calls}) == 3
    assert healthy.call.__module__ == "fuzz_attn.kernels.unified_attention"
    assert Path(inspect.getfile(one.call)).is_relative_to(tmp_path)
