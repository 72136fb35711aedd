"""The matrix of docs/published.md is that of launchers.toml, which agrees with the bindings that this package knows."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fuzz_attn.case.contract_trial import ContractTrial
from fuzz_attn.operations.registry import FAMILIES
from fuzz_attn.targets import loading

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
    assert matrix.contracts_of(launchers) in page, "run `make launchers`"
    assert matrix.contracts_in_words(launchers) in page, "run `make launchers`"
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


def test_the_table_of_contracts_follows_from_the_data(matrix: ModuleType) -> None:
    none = {"spec": "a==1:a.b.merging:merge", "binds": "names", "family": "merge_states", "shows": "nothing"}
    two = {
        **none,
        "spec": "a==1:a.c:call",
        "contracts": "strides: `x`, `y`; output in place: `q`",
        "argued": "unclear: a",
    }
    one = {**none, "spec": "a==1:a.d:call", "contracts": "strides: `x`", "argued": "outside: checked"}
    page = matrix.with_matrix(
        f"1 of 1 launchers have 1 rows of contracts\n\n{matrix.CONTRACTS_HEAD}| x |\n", [none, two, one]
    )
    assert page == (
        "2 of 3 launchers have 3 rows of contracts with 4 arguments: 0 defect, 1 outside, 1 unclear.\n\n"
        f"{matrix.CONTRACTS_HEAD}| a `c:call` | strides: `x`, `y`; output in place: `q` | unclear: a |\n"
        "| a `d:call` | strides: `x` | outside: checked |\n"
    )


def test_what_a_launcher_takes_wrongly_is_argued(matrix: ModuleType, launchers: list[dict[str, str]]) -> None:
    for each in launchers:
        assert ("contracts" in each) is ("argued" in each), each["spec"]
        verdict, colon, why = each.get("argued", "unclear: it takes none").partition(": ")
        assert verdict in matrix.VERDICTS, each["spec"]
        assert colon, each["spec"]
        assert why, each["spec"]


def test_trials_of_one_way_are_named_together(module_at: Callable[[Path], ModuleType]) -> None:
    words = module_at(HERE / "unusual_arguments.py").in_words
    trials = [
        ContractTrial("stepped", "seq_lens"),
        ContractTrial("expanded", "seq_lens"),
        ContractTrial("swapped", "key"),
        ContractTrial("in_place", "query"),
        ContractTrial("type", "block_table", "int64"),
        ContractTrial("stepped", "block_table"),
    ]
    names = {"seq_lens": "lens", "block_table": "table", "query": "q", "key": "k", "value": "v", "output": "out"}
    assert words(trials, names) == (
        "type: `table`; strides of elements: `lens`, `table`; strides of axes: `k`, `v`; output in place: `q`"
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
    known: dict[str, Any] = loading._known_binding()
    assert not [pattern for pattern in known if not any(fnmatchcase(name, pattern) for name in names)]
    text = (Path(str(loading.__file__)).parent / "bindings.toml").read_text(encoding="utf-8")
    for pattern in known:
        lines = [line for table in text.split("\n\n") if f'["{pattern}"' in table for line in table.splitlines()]
        assert len([line for line in lines if not line.startswith("#")]) <= MOST_LINES, pattern
