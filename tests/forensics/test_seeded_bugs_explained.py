"""Seeded bugs, and bugs planted for `explain` only, each on a small failing case: its reason and its words."""

import json
import re
import runpy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from fuzz_attn.forensics.explanation import REASONS
from fuzz_attn.mutation.seeded_bugs import load_seeded_bugs

Rows: TypeAlias = dict[str, dict[str, Any]]
HERE = Path(__file__).parent
TABLES = Path(__file__).parents[2] / "fuzz_attn" / "mutation" / "seeded" / "tables"
KERNELS = Path(__file__).parents[2] / "kernels"
CASES = HERE / "seeded_bug_cases.json"
TRUTH: dict[str, dict[str, Any]] = tomllib.loads((HERE / "explained_bugs.toml").read_text(encoding="utf-8"))
QUICK = [bug for bug, entry in TRUTH.items() if entry.get("quick")]
"""One or two bugs for each kind of question; `make explanations` asks about all of them."""
EACH_REASON = {
    "value_tail_unmasked",
    *{reason: bug for bug in reversed(QUICK) for reason in TRUTH[bug]["reasons"]}.values(),
}
"""Of those the first one of each reason, for `make test`."""
PLANTED: dict[str, dict[str, Any]] = tomllib.loads((HERE / "planted_bugs_explained.toml").read_text(encoding="utf-8"))
"""Bugs planted without a look at the code of `explain`, in the order in which it got them wrong at first."""
QUICK_PLANTED = (
    *("context_answers_decode_rows", "int8_numbers_cut_off", "largest_of_the_later_states", "page_and_place_exchanged"),
    *("last_log_sum_exp_subtracted_with_small_errors", "padding_of_merged_heads_stored"),
    *("parts_of_the_heads_of_a_group_in_one_place", "scales_squared_beside_an_fp8_query"),
    "values_in_the_buffer_with_the_scale_of_keys",
)
"""Each is the one that shows a fault of tests/faults; `make slow` explains all that are planted."""
TOLD = 0.95
"""Share of the bugs in scope for which the key, row, head, factor or entry must be stated."""
MOST_LAUNCHES = 300
"""Launches after which an explanation would come too late in a run, which has four seconds for it."""


@pytest.fixture(scope="module")
def rows_of(run_program: Callable[..., Any]) -> Callable[..., Rows]:
    """Return what a process of the explaining program says of each bug: the simulator is not the backend of this one.

    One test asks for all rows of a process, which parametrized tests in several workers of pytest would start again.
    """

    def rows(*arguments: object) -> Rows:
        done = run_program(HERE / "explaining_program.py", "--seconds", "60", *arguments)
        assert done.returncode == 0, done.stderr
        return {row["bug"]: row for row in map(json.loads, done.stdout.splitlines())}

    return rows


def assert_as_stated(rows: Rows, stated: Rows) -> None:
    """Fail where reason or words of an explanation are others than stated, or where it took many launches."""
    other = {
        bug: (row["reason"], row["words"])
        for bug, row in rows.items()
        if row["reason"] not in stated[bug]["reasons"] or not re.search(stated[bug]["words"], row["words"])
    }
    assert other == {}
    assert {bug: row["launches"] for bug, row in rows.items() if row["launches"] > MOST_LAUNCHES} == {}


def test_planted_bugs_have_their_right_reason_and_words(rows_of: Callable[..., Rows]) -> None:
    rows = rows_of(HERE / "planted_bug_cases.json", "--tables", HERE / "planted", *QUICK_PLANTED)
    assert rows.keys() == set(QUICK_PLANTED)
    assert_as_stated(rows, PLANTED)


@pytest.mark.slow
def test_all_planted_bugs_have_their_right_reason_and_words(rows_of: Callable[..., Rows]) -> None:
    rows = rows_of(HERE / "planted_bug_cases.json", "--tables", HERE / "planted")
    assert rows.keys() == PLANTED.keys()
    assert_as_stated(rows, PLANTED)


def test_every_planted_bug_has_a_case() -> None:
    assert json.loads((HERE / "planted_bug_cases.json").read_bytes()).keys() == PLANTED.keys()


@pytest.mark.parametrize("bugs", [EACH_REASON, pytest.param(set(QUICK), marks=pytest.mark.slow)], ids=["some", "all"])
def test_quick_bugs_have_their_right_reason_and_words(bugs: set[str], rows_of: Callable[..., Rows]) -> None:
    rows = rows_of(CASES, *sorted(bugs))
    assert rows.keys() == bugs
    assert_as_stated(rows, TRUTH)
    line = re.search(r"query_blocks\.py:(\d+)", rows["value_tail_unmasked"]["words"])
    assert line is not None
    source = KERNELS / "common" / "query_blocks.py"
    lines = source.read_text(encoding="utf-8").splitlines()
    # Of a call of several lines, Triton 3.9 names the first line and Triton 3.6 that of an argument.
    read = [text.strip() for text in lines[int(line[1]) - 2 : int(line[1])]]
    assert "v_tile = tl.load(" in read, "a dead slot's values are named where they are loaded"


CAUSES = {
    "page_offset_in_32_bits": "overflow: offsets of pages in their caches are computed in 32 bits",
    "key_offset_in_32_bits": r"overflow at .*/varlen_attention\.py:\d+",
    "values_strided_like_keys": "address: the strides of the value cache within a page are not used",
    "split_values_strided_like_keys": "address: the strides of the value cache from page to page are not used",
    "slot_strides_of_the_new_tokens": "address: the strides of the key cache within a page are not used",
    "padded_rows_written": "unwritten: rows behind the last token are written by reduce_segments",
    "empty_sequence_takes_a_row": "foreign sequence: a row of another sequence is taken for one without query tokens",
}
"""What other kernels that make the same mistake share with a bug, and other mistakes do not."""


def test_the_cause_of_an_access_names_no_line_where_another_line_may_share_it(rows_of: Callable[..., Rows]) -> None:
    rows = rows_of(CASES, *CAUSES)
    other = {bug: row["cause"] for bug, row in rows.items() if not re.fullmatch(CAUSES[bug], row["cause"])}
    assert other == {}
    assert rows.keys() == CAUSES.keys()


def test_every_seeded_bug_has_its_right_reasons() -> None:
    assert set(TRUTH) == {bug.name for bug in load_seeded_bugs(TABLES)}
    assert {reason for entry in TRUTH.values() for reason in entry["reasons"]} <= set(REASONS)


def test_the_words_are_stated_for_nearly_all_bugs_in_scope() -> None:
    stated = ["words" in entry for entry in TRUTH.values() if entry.get("in_scope", True)]
    assert sum(stated) >= TOLD * len(stated)
    assert set(QUICK) <= {bug for bug, entry in TRUTH.items() if "words" in entry}


@pytest.mark.parametrize(("reason", "words"), [("slope", "the right sign"), ("sink", "the wrong sign")])
def test_a_check_names_an_explanation_that_is_not_as_stated(
    reason: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check = runpy.run_path(str(HERE / "explaining_program.py"))["check"]
    row = {"bug": "alibi_sign", "reason": "slope", "words": "head 0: the slopes have the wrong sign", "seconds": 1.0}
    assert check(iter([row]), {"alibi_sign": {"reasons": ["slope"], "words": "the wrong sign"}}) == 0
    assert check(iter([row]), {"alibi_sign": {"reasons": [reason], "words": words}}) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "1 of 1 explanations are as stated; 1 s of processor time"
    assert printed[1] == "alibi_sign: slope: head 0: the slopes have the wrong sign"


def test_every_case_is_of_a_seeded_bug() -> None:
    assert set(json.loads(CASES.read_text(encoding="utf-8"))) <= set(TRUTH)


def test_most_reasons_are_covered_by_the_quick_bugs() -> None:
    covered = {reason for bug in QUICK for reason in TRUTH[bug]["reasons"]}
    # A seeded bug shows in one call with usual arguments; tests/operations/test_call_sequences.py has those that need
    # an earlier one, test_contract_trials.py beside it those of unusual arguments. test_repair.py has those that only a
    # change of the kernel explains.
    assert set(REASONS) - covered == {"contract", "earlier call", "operation", "unknown"}
