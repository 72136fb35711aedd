"""The matrix of docs/published.md is that of launchers.toml, which agrees with the bindings that this package knows."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fuzz_attn.operations.registry import FAMILIES
from fuzz_attn.targets.published import place

HERE = Path(__file__).parent
MOST_LINES = 10


@pytest.fixture(scope="module")
def matrix(module_at: Callable[[Path], ModuleType]) -> ModuleType:
    return module_at(HERE / "launcher_matrix.py")


@pytest.fixture(scope="module")
def launchers(matrix: ModuleType) -> list[dict[str, str]]:
    found: list[dict[str, str]] = matrix.load()
    return found


def test_the_page_holds_the_matrix_of_the_data(matrix: ModuleType, launchers: list[dict[str, str]]) -> None:
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert matrix.matrix_of(launchers) in page, "run `make launchers`"
    assert matrix.summary_of(launchers) in page, "run `make launchers`"
    assert matrix.with_matrix(page, launchers) == page


def test_the_matrix_follows_from_the_data(matrix: ModuleType) -> None:
    rows = [
        {"spec": "a==1:a.b.merging:merge", "binds": "names", "family": "merge_states", "shows": "nothing"},
        {"spec": "c::c.d:call", "binds": "no", "lacks": "no family"},
    ]
    page = matrix.with_matrix(f"1 of 1 bind: x\n\n{matrix.HEAD}| old |\n\nEnd\n", rows)
    assert page == (
        "1 of 2 bind: 1 by names, 0 by a known binding.\n\n"
        f"{matrix.HEAD}| a `merging:merge` | by names | `merge_states` | nothing |\n"
        "| c `d:call` | no |  | no family |\n\nEnd\n"
    )


def test_saved_data_are_read_as_they_were(matrix: ModuleType, launchers: list[dict[str, str]], tmp_path: Path) -> None:
    matrix.save(launchers, tmp_path / "launchers.toml")
    assert matrix.load(tmp_path / "launchers.toml") == launchers
    assert (tmp_path / "launchers.toml").read_text() == matrix.DATA.read_text()


def test_each_launcher_says_what_it_computes_or_lacks(launchers: list[dict[str, str]]) -> None:
    specs = [each["spec"] for each in launchers]
    assert len(set(specs)) == len(specs) == 58
    for each in launchers:
        bound = each["binds"] != "no"
        assert ("lacks" in each) is not bound, each["spec"]
        assert ("shows" in each) is bound, each["spec"]
        assert (each.get("family") in FAMILIES) is bound, each["spec"]
        assert "\n" not in (each.get("lacks") or each["shows"]), each["spec"]


def test_what_binds_by_a_known_binding_has_one(matrix: ModuleType, launchers: list[dict[str, str]]) -> None:
    for each in launchers:
        if each["binds"] != "no":
            assert matrix.is_known(each["spec"]) is (each["binds"] == "known"), each["spec"]


def test_each_known_binding_is_of_a_launcher_and_short(matrix: ModuleType, launchers: list[dict[str, str]]) -> None:
    names = [":".join(matrix.parts_of(each["spec"])[1:]) for each in launchers]
    known: dict[str, Any] = place._known()
    assert not [pattern for pattern in known if not any(fnmatchcase(name, pattern) for name in names)]
    text = (Path(str(place.__file__)).parent / "bindings.toml").read_text(encoding="utf-8")
    for pattern in known:
        lines = [line for table in text.split("\n\n") if f'["{pattern}"' in table for line in table.splitlines()]
        assert len([line for line in lines if not line.startswith("#")]) <= MOST_LINES, pattern
