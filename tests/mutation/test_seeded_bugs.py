"""The museum: every specimen fits the kernels of today, and an anchor that does not is an error."""

import ast
from pathlib import Path
from typing import get_args

import pytest

from fuzz_attn.case.families import Family
from fuzz_attn.mutation.seeded.bugs import Edit, Specimen, SpecimenError, load_museum, plant, specimen_named

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"
MUSEUM = load_museum(ROOT / "fuzz_attn" / "mutation" / "seeded" / "tables")


def specimen(*edits: Edit) -> Specimen:
    return Specimen(("unified",), "wrong", "shown", edits, name="made_up")


@pytest.mark.parametrize("entry", MUSEUM, ids=lambda entry: entry.name)
def test_fits_the_kernels(entry: Specimen, tmp_path: Path) -> None:
    planted = plant(entry, KERNELS, tmp_path)
    changed = [
        path for path in KERNELS.rglob("*.py") if (planted / path.relative_to(KERNELS)).read_text() != path.read_text()
    ]
    assert {str(path.relative_to(KERNELS)) for path in changed} == {edit.file for edit in entry.edits}
    for path in changed:
        ast.parse((planted / path.relative_to(KERNELS)).read_text())


@pytest.mark.parametrize("family", get_args(Family))
def test_there_are_enough_of_every_family(family: Family) -> None:
    assert sum(family in entry.families for entry in MUSEUM) >= 60


@pytest.mark.parametrize(("anchor", "times"), [("no such text", 0), ("import", 2)])
def test_an_anchor_must_occur_once(anchor: str, times: int, tmp_path: Path) -> None:
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    (kernels / "a.py").write_text("import one\nimport two\n")
    with pytest.raises(SpecimenError, match=f"anchor '{anchor}' occurs {times} times in a.py"):
        plant(specimen(Edit("a.py", anchor, "x")), kernels, tmp_path / "planted")


def test_a_file_that_is_gone_holds_no_anchor(tmp_path: Path) -> None:
    with pytest.raises(SpecimenError, match=r"occurs 0 times in gone\.py"):
        plant(specimen(Edit("gone.py", "import", "x")), KERNELS, tmp_path)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "holds no specimen"),
        ({"a.toml": "[one]\nwrong = 1"}, "museum file"),
        ({"a.toml": "{one}", "b.toml": "{one}"}, "occurs in a.toml and in b.toml"),
    ],
)
def test_a_museum_that_cannot_be_read(files: dict[str, str], reason: str, tmp_path: Path) -> None:
    one = '[one]\nfamilies = ["unified"]\nwrong = "w"\nshown_by = "s"\nedits = []\n'
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("{one}", one))
    with pytest.raises(SpecimenError, match=reason):
        load_museum(tmp_path)


def test_a_specimen_that_is_not_there() -> None:
    with pytest.raises(SpecimenError, match="specimen 'nobody' is not in the museum"):
        specimen_named(ROOT / "fuzz_attn" / "mutation" / "seeded" / "tables", "nobody")
