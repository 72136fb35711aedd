"""The page docs/history.md is made from history.toml, whose names exist and agree with the seeded bugs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fuzz_attn.mutation.seeded_bugs import load_seeded_bugs
from fuzz_attn.operations.registry import OPERATIONS, operation_of_family

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SAMPLES = ROOT / "tests" / "sample_targets"
TABLES = ROOT / "fuzz_attn" / "mutation" / "seeded" / "tables"
SPELLED = {"flashattention": "flash-attention"}


@pytest.fixture(scope="module")
def history(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(HERE / "history.py")


@pytest.fixture(scope="module")
def bugs(history: ModuleType) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = history.load()[0]
    return found


def spelled(ref: str) -> str:
    """Return an issue in small letters without spaces, as different tables spell it."""
    project, mark, number = ref.replace(" ", "").lower().partition("#")
    return SPELLED.get(project, project) + mark + number


def test_committed_page_is_made_from_the_table(history: ModuleType) -> None:
    assert (ROOT / "docs" / "history.md").read_text(encoding="utf-8") == history.page(*history.load()), "make history"


def test_every_bug_stands_once_and_says_what_it_lacks(history: ModuleType, bugs: list[dict[str, Any]]) -> None:
    assert len({spelled(bug["ref"]) for bug in bugs}) == len(bugs)
    for bug in bugs:
        assert bug["what"], bug
        assert bug["language"] in history.LANGUAGES, bug
        assert bug["case"] or bug["missing"], bug


def test_families_and_features_exist(history: ModuleType, bugs: list[dict[str, Any]]) -> None:
    families = {family for operation in OPERATIONS.values() for family in operation.families}
    for bug in bugs:
        assert not bug["case"] or bug["case"] in families, bug
        assert not bug["features"] or set(bug["features"]) <= set(operation_of_family(bug["case"]).features), bug
    needs = {history.need_of(bug) for bug in bugs if bug["case"] and bug["features"]}
    assert set(history.load()[1]) == needs, "make history ARGS=--shares"


def test_planted_bugs_exist_and_none_is_missing(bugs: list[dict[str, Any]]) -> None:
    seeded = {bug.name: bug for bug in load_seeded_bugs(TABLES)}
    planted = {spelled(bug["ref"]): bug["planted"] for bug in bugs}
    for bug in bugs:
        for name in bug["planted"]:
            operation, colon, title = name.partition(": ")
            if colon and operation == "target":
                file, _, function = title.partition(":")
                assert f"\ndef {function}(" in (SAMPLES / file).read_text(encoding="utf-8"), name
                continue
            assert name in seeded, name
    for path in TABLES.glob("*.toml"):
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
            for ref in table.get("seen_in", ()):
                assert spelled(ref) not in planted or name in planted[spelled(ref)], (ref, name)


def test_counts_add_up(history: ModuleType) -> None:
    one = {"ref": "a#1", "kind": "merge", "case": "merge_states", "features": [], "missing": "", "planted": ["x"]}
    part, other = one | {"missing": "more", "planted": []}, one | {"case": "", "kind": "backward"}
    unknown = part | {"case": "", "missing": history.UNKNOWN}
    assert [count for _, count in history.counts([one, part, other, unknown])] == [4, 3, 1, 1, 0, 1, 1, 0]
