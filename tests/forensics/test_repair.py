"""Repairs: the change that mends a planted bug, where it leads, and what contradicts a finding."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from msgspec import structs

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.forensics.candidates import AtPlace, OfArguments, of_arguments, of_grids
from fuzz_attn.forensics.explanation import Explanation, Finding, Reason, Repair
from fuzz_attn.forensics.near_cases import healthy_cases, near_cases
from fuzz_attn.forensics.repair import is_of_loop, place_of
from fuzz_attn.forensics.repaired import contradicts, is_chance, with_repair
from fuzz_attn.operations.attention.attention import Attention
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.report.failure import render_explanation
from fuzz_attn.report.printing import text_of
from fuzz_attn.simulator.formulas import in_words
from fuzz_attn.simulator.switches import Launched
from fuzz_attn.targets.loading import load_target
from fuzz_attn.ttir.ir import Location, Operation

HERE = Path(__file__).parent
SEEDED = {
    # a predicate
    "causal_or_equal": r"scores\.py:119, `key <= causal_limit` to `key < causal_limit`",
    # an operation left out
    "new_tokens_restart_the_denominator": r"context_attention\.py:\d+, `row_sum \* 0` to `row_sum`",
    # an argument, which the launcher computes wrongly
    "heads_of_a_page_assumed_dense": r"`argument values.stride_head of kernel_\w+` to `values.ptr.stride\(1\)`",
    # a mask added, where only a sanitizer sees the mistake
    "qq_bias_rows_past_the_matrix": r"scores\.py:\d+, `inside` to `inside & \w*mask`",
    # what a variable is before a loop, in another operation
    "merge_starts_from_0": r"merge_states\.py:\d+, `largest = 0` to `largest = -inf`",
    # a sum that is not divided by that of its weights; larger parts of the keys would only avoid a merge
    "latent_merge_not_normalised": r"splits\.py:\d+, `(sum\(parts \* weight\))` to `\1 / sum\(weight\)`",
    # how often a loop runs
    "merge_maximum_lacks_the_last_state": r"merge_states\.py:\d+, `num_states - 1` to `num_states`",
    # a predicate, where an element is never written
    "write_skips_slot_0": r"cache_write\.py:\d+, `slot > 0` to `slot >= 0`",
}
PLANTED = {
    # another function
    "split_sums_in_base_2_beside_sinks": r"splits\.py:58, `log2\(row_sum\)` to `log\(row_sum\)`",
    # a sum that is not divided by another value of its rows
    "parts_merged_undivided": r"splits\.py:61, `output` to `output / row_sum\[:, None\]`",
    # an argument, which the launchers of several kernels pass
    "values_with_the_page_stride_of_keys": r"`argument values.stride_block of kernel_\w+` to `values.ptr.stride\(0\)`",
    # a quotient that is to be rounded up
    "segments_of_whole_tiles_rounded_down": r"segments\.py:32, `\(.*\) // 4` to `\(.* \+ 4 - 1\) // 4`",
    # more programs along an axis of a grid
    "last_block_without_a_program": r"`1 x 1 x 1 programs of kernel_context_attention` to `1 x 1 x 2 programs`",
    # a number behind another pointer, in each product of one line
    "scores_with_the_scale_of_values": r"blocks\.py:\d+, `.* \* v_scale` to `.* \* load\(scales\.k_scale_ptr\)`",
    # another constant that the kernel is compiled for
    "value_mask_of_the_key_size": r"rows\.py:\d+, `dim < HEAD_SIZE` to `dim < HEAD_SIZE_V`",
    # a value times another one
    "table_without_row_stride": r"paged_attention\.py:\d+, `seq_idx` to `seq_idx \* block_table_stride`",
    # a sum that is rounded
    "sum_rounded_after_each_state": r"merge_states\.py:\d+, `(total \+ \(weight \* ...\)) in f16` to `\1`",
    # a mask of a store without the limit of its columns
    "padding_over_the_next_part": r"splits\.py:\d+, `row_mask` to `row_mask & \(dim < HEAD_SIZE_V\)`",
    # all strides of another tensor, in one sum
    "values_with_the_strides_of_keys": r"`the strides of keys in place of those of values` to `those of values`",
    # a constant that the launcher computes
    "chunk_of_the_query_type": r"`constant X of kernel_paged_attention_2d` to `keys\.ptr\.shape\[4\]`",
    # a constant that the launcher computes once for two kernels
    "chunk_of_the_query_type_in_two_kernels": (
        r"`constant X of kernel_paged_attention_2d and other kernels` to `keys\.ptr\.shape\[4\]`"
    ),
    # an offset that has the name of its pointer in the IR
    "heads_of_the_output_assumed_dense": r"merge_states\.py:\d+, `head \* 16` to `head \* partial_outputs_stride_head`",
    # the second of two calls that lead to one place
    "context_to_the_end_of_the_keys": r"`minimum\(context_len, key_end\)` where context_attention\.py:\d+ calls it",
    # a place that no finding names
    "context_of_all_keys": r"scores\.py:\d+, `\(seq_len \+ last_query\) \+ 1` to `seq_len`",
    # a comparison that is another one of its line in kernels with other constants
    "empty_splits_are_read": r"`.* >= 0` to `.* > 0`",
    # a constant by its own name, on the line of the call that passes it
    "merge_with_padded_splits": r"makes it right: splits\.py:\d+, `.* // NUM_SPLITS_PADDED` to `.* // NUM_SPLITS`",
    # two kernels that do not agree, of which either may be wrong
    "parts_without_padding": r"avoids it.*`index \* HEAD_SIZE_PADDED` to `index \* HEAD_SIZE`, or kernel_3d\.py",
    # programs that have no row
    "programs_for_padded_rows_of_a_merge": r"`4 x 1 x 1 programs of kernel_merge_states` to `1 x 1 x 1 programs`",
    # an argument that the launcher passes to two kernels of one call, and that needs 64 bits in some cases
    "table_rows_of_the_longest_sequence": (
        r"`argument block_table_stride of kernel_context_attention and kernel_paged_attention_2d` to "
        r"`batch\.block_table_ptr\.stride\(0\)`"
    ),
    # the begin of a range, which a line above subtracts from its end
    "begin_of_a_segment_at_least_the_first_tile": (
        r"segments\.py:33, `segment \* tiles_per_segment` to `\(segment \* tiles_per_segment\) \+ \(key_begin // 32\)`"
    ),
    # a place in the batch for one within a sequence
    "rows_of_the_first_sequence": r"rows\.py:147, `query \* (\S+)` to `\(query_start \+ query\) \* \1`",
    # a constant of one stage, which another stage has too
    "merge_with_another_tile": r"`constant TILE_SIZE of kernel_mla_merge` to `that of kernel_mla_split`",
    # a constant that is the size of a tile for all of another one
    "merge_of_splits_rounded_down": (
        r"`constant NUM_SPLITS_PADDED of kernel_mla_merge` to `NUM_SPLITS rounded up to a power of two`"
    ),
    # the factor of a softmax's maximum, on what a loop has summed
    "latent_parts_not_rescaled": r"splits\.py:\d+, `output` to `output \* alpha\[:, None\]`",
    # another variable in a comparison, which its negation does not replace where several segments have keys
    "segment_by_its_first_tile": r"query_blocks\.py:\d+, `.* == 0` to `segment == 0`",
    # an argument that is wrong only with other strides, for which a property launches the target again
    "new_values_with_the_token_stride_of_new_keys": r"`argument new_values\.stride_token of \w+` to `new_values\.ptr",
    # a grid that a launcher makes once for two kernels, of which others cases launch the other one
    "grid_of_a_dense_packing": r"`1 x 2 x 1 programs of kernel_unified_attention_\dd` to `2 x 2 x 1 programs`",
    # an argument before the check that takes it
    "bias_columns_from_a_stride": r"makes it right: .*`argument qq_bias_cols of \w+` to `scores\.qq_bias_ptr\.",
    # an operation too many, of which another number is no cause
    "offset_of_positions_at_least_0": r"`maximum\(key_len - query_len, 0\)` to `key_len - query_len`",
    # the begin of a loop that reads outside, though what it attends is right
    "new_tokens_from_before_the_first": r"`(.*)` to `maximum\(\1, 0\)`",
}


QUICK = ("merge_starts_from_0", "merge_with_padded_splits", "write_skips_slot_0")
"""What a variable is before a loop, an offset, and an element that is never written.

The searches for all bugs take minutes: `make slow` runs them every night.
"""
Rows: TypeAlias = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def rows_of(run_program: Callable[..., Any]) -> Callable[..., Rows]:
    """Return what a process says of bugs: the simulator is not the backend of this one."""

    def rows(bugs: Iterable[str]) -> Rows:
        found: Rows = {}
        for cases, known, tables in (
            ("seeded_bug_cases.json", SEEDED, ()),
            ("planted_bug_cases.json", PLANTED, ("--tables", HERE / "planted")),
        ):
            names = [bug for bug in bugs if bug in known]
            if names:
                options = ("--repair", "--seconds", "60", *tables)
                done = run_program(HERE / "explaining_program.py", HERE / cases, *options, *names)
                assert done.returncode == 0, done.stderr
                found |= {row["bug"]: row for row in map(json.loads, done.stdout.splitlines())}
        return found

    return rows


def test_changes_mend_a_bug_of_some_kinds(rows_of: Callable[..., Rows]) -> None:
    rows = rows_of(QUICK)
    stated = SEEDED | PLANTED
    assert {bug: rows[bug]["repair"] for bug in QUICK if not re.search(stated[bug], rows[bug]["repair"])} == {}


@pytest.mark.slow
@pytest.mark.parametrize("bug", SEEDED)
def test_a_change_mends_a_seeded_bug(bug: str, rows_of: Callable[..., Rows]) -> None:
    row = rows_of([bug])[bug]
    assert re.search(SEEDED[bug], row["repair"]), row
    if bug == "causal_or_equal":
        assert row["reason"] in ("causal", "denominator"), "what is certain stays in front of a change"


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED)
def test_a_change_mends_a_planted_bug(bug: str, rows_of: Callable[..., Rows]) -> None:
    row = rows_of([bug])[bug]
    assert re.search(PLANTED[bug], row["repair"]), row


@pytest.mark.parametrize(
    ("changes", "keys_are_right", "is_detour"),
    [
        # loops that read the right keys run in another way
        ({"steps": False}, True, True),
        ({"steps": False}, False, False),
        # launches that were right compute more or less, with far another number
        ({"steps": False, "longer": 0.1, "by": 30.0}, False, True),
        ({"steps": False, "longer": 0.1, "by": 1.0}, False, False),
        # most of them have far another number, and no other loops
        ({"touched": 10, "by": 30.0}, False, True),
        ({"touched": 6, "by": 30.0}, False, False),
        # and half of them with an unlikely change
        ({"order": 4.0, "touched": 6, "by": 30.0}, False, True),
        ({"order": 4.0, "touched": 4, "by": 30.0}, False, False),
        ({"touched": 10, "by": 1.0}, False, False),
        # unless the number is what the function subtracts elsewhere
        ({"steps": False, "longer": 0.1, "touched": 10, "by": 30.0, "restores": True}, False, False),
        # no number of a whole program, but a mask or a tile
        ({"steps": False, "longer": 0.1, "by": 30.0, "counts": False}, True, False),
    ],
)
def test_a_change_that_leads_round_a_mistake_is_a_detour(
    changes: dict[str, Any], keys_are_right: bool, is_detour: bool
) -> None:
    change = AtPlace(1.0, "length // 16", "length", right=10, counts=True)
    for name, value in changes.items():
        setattr(change, name, value)
    assert change.is_detour(keys_are_right) is is_detour


@pytest.mark.parametrize(
    ("changes", "leads_round"),
    [
        ({}, True),
        ({"longer": 0.0}, False),
        ({"order": 0.0, "by": 1.0}, False),
        ({"order": 0.0, "by": 1.0, "longer": 0.6}, True),
        ({"order": 0.0, "by": 2.0}, True),
        ({"order": 1.8, "by": 1.0}, True),
        ({"order": 0.9, "restores": True}, False),
    ],
)
def test_a_change_of_right_launches_loops_is_a_way_round_unless_it_is_a_likely_step(
    changes: dict[str, Any], leads_round: bool
) -> None:
    change = AtPlace(1.8, "tiles", "tiles + 2", steps=False, longer=0.1, by=2.0)
    for name, value in changes.items():
        setattr(change, name, value)
    assert leads_round is not is_of_loop(change)


def test_a_grid_grows_along_one_axis_to_the_size_of_a_tensor_at_most_where_that_is_larger() -> None:
    launched = Launched("kernel", {("out.ptr", "*fp32"): torch.zeros(2, 5)}, Location("call.py", 7), (2, 3, 1))
    grown = [each.grid(launched.grid, {"out.ptr": torch.zeros(2, 5)}) for each in of_grids(launched)]
    assert {(5, 3, 1), (2, 5, 1), (2, 3, 2), (2, 3, 5)} <= set(grown)
    assert all(sum(new != old for new, old in zip(grid, launched.grid, strict=True)) == 1 for grid in grown)


def test_a_grid_shrinks_to_a_smaller_size_where_programs_may_be_surplus() -> None:
    arguments = {("slots", "*i64"): torch.zeros(3)}
    launched = Launched("kernel", arguments, Location("call.py", 7), (4, 2, 1))
    fewer = [each for each in of_grids(launched, surplus=True) if each.fewer]
    assert [each.grid(launched.grid, {"slots": torch.zeros(3)}) for each in fewer] == [(3, 2, 1)]
    # a launch that has fewer programs than the size keeps them, and none becomes empty
    assert [each.grid((2, 2, 1), {"slots": torch.zeros(3)}) for each in fewer] == [(2, 2, 1)]
    assert [each.grid((2, 2, 1), {"slots": torch.zeros(0)}) for each in fewer] == [(1, 2, 1)]
    assert not any(each.fewer for each in of_grids(launched))


def test_programs_without_a_row_lead_before_what_they_access(rows_of: Callable[..., Rows]) -> None:
    bug = "programs_for_padded_rows_of_a_merge"
    findings = rows_of([bug])[bug]["findings"]
    assert re.fullmatch(
        r"merge_states\.py:\d+ launches kernel_merge_states with 4 x 1 x 1 programs, "
        "and is right with 1 x 1 x 1 programs: the others have no row to compute",
        findings[0][1],
    )
    assert findings[1][1].startswith("out-of-bounds load")


def test_the_strides_of_a_tensor_are_one_change_where_several_are_those_of_another_one() -> None:
    names = [("k.ptr", "*fp32"), ("k.stride_token", "i64"), ("k.stride_head", "i64")]
    launched = Launched("kernel", dict(zip(names, (torch.zeros(2, 3, 4), 20, 5), strict=True)), Location("call.py", 7))
    words = [(each.old, each.new) for each in of_arguments(launched)]
    assert ("k.stride_token and k.stride_head", "k.ptr.stride(0) and k.ptr.stride(1)") in words


def test_a_change_for_one_call_is_said_with_that_call() -> None:
    assert "`score / softcap` where b.py:9 calls it" in structs.replace(REPAIR, called_at="b.py:9").sentence


def test_nothing_is_changed_on_a_backend_without_switches() -> None:
    experiment = Experiment(AttentionCase(sequences=(Sequence(1, 1),)), load_target("unified"), InterpreterBackend())
    found = Explanation((Finding("unknown", "could not tell"),))
    assert with_repair(found, experiment, None, Attention()).repair is None


def test_near_cases_are_the_same_each_time_and_differ_from_each_other() -> None:
    case = AttentionCase(sequences=(Sequence(3, 5),), window=4)
    cases = list(near_cases(Attention(), case, 1, 9))
    assert cases == list(near_cases(Attention(), case, 1, 9))
    assert len(set(cases)) == len(cases) == 8
    assert all(each.window for each in cases)


def test_healthy_cases_lack_what_a_case_has_and_have_what_it_lacks() -> None:
    case = AttentionCase(sequences=(Sequence(3, 5),), softcap=4.0, softmax_scale=0.0)
    cases = list(healthy_cases(Attention(), case, 40))
    assert cases == list(healthy_cases(Attention(), case, 40))
    assert any(not each.softcap for each in cases)
    assert any(each.softmax_scale > 0.0 for each in cases)
    assert any(each.alibi is not None for each in cases)
    assert any(each.max_query_len > 64 for each in cases)
    assert any(each.strides.block_table and each.strides.q_token for each in cases)


@pytest.mark.parametrize("other", [0, 3, 4])
def test_a_change_is_confirmed_by_launches_that_were_right(other: int) -> None:
    repair = Repair("/a.py:7", "a", "a", "b", 10 + other, 10)
    assert repair.is_confirmed is (other == 4)


def test_a_change_of_an_address_does_not_contradict_unless_it_is_confirmed() -> None:
    finding, candidate = Finding("sink", "claimed"), AtPlace(1.0, "row", "row + 1", element="i32")
    candidate.places = (Location("nowhere.py", 1),)
    assert contradicts(REPAIR, candidate, finding)
    assert not contradicts(structs.replace(REPAIR, failed=REPAIR.launches), candidate, finding)


@pytest.mark.parametrize(
    ("keyword", "words"), [("eq", "a == b"), ("slt", "a < b"), ("ult", "a < b"), ("une", "a != b")]
)
def test_a_comparison_is_said_with_its_sign(keyword: str, words: str) -> None:
    operation = Operation("arith.cmpi", [], [], f" {keyword}, %a, %b : i32")
    assert in_words(operation, ["a", "b"]) == words


REPAIR = Repair(
    "/kernels/a.py:7", "score = score / cap", "score / cap", "score / softcap", 21, 9, ("b.py:3, `x` to `y`",)
)


def test_a_change_is_said_with_its_line_and_its_launches() -> None:
    sentence = (
        "A change that makes it right: a.py:7, `score / cap` to `score / softcap`, or b.py:3, `x` to `y` "
        "(21 of 21 launches right, 9 of which were wrong)"
    )
    assert REPAIR.sentence == sentence
    text = text_of(render_explanation(Explanation((Finding("soft cap", "wrong"),), repair=REPAIR)), width=200)
    assert f"{sentence}.\n  score = score / cap\n" in text


@pytest.mark.parametrize(
    ("reason", "words", "element", "contradicted"),
    [
        ("sink", ("slope * key", "slope * distance"), "f32", True),
        ("slope", ("slope * key", "slope * distance"), "f32", False),
        ("page", ("slope * key", "slope * distance"), "f32", True),
        ("page", ("slot", "slot + 1"), "i32", False),
        ("sink", ("weights", "weights + 1"), "f32", True),
        ("slope", ("weights", "weights + 1"), "f32", False),
    ],
)
def test_a_finding_about_another_term_is_contradicted(
    reason: Reason, words: tuple[str, str], element: str, contradicted: bool
) -> None:
    candidate = AtPlace(1.0, *words, places=(Location("nowhere.py", 1),), element=element)
    assert contradicts(REPAIR, candidate, Finding(reason, "claimed")) is contradicted


def test_the_place_of_a_change_is_the_line_that_names_what_changes(tmp_path: Path) -> None:
    source = tmp_path / "kernel.py"
    source.write_text("def tanh(x):\n    return where(x)\nscore = tanh(score / softcap)\n", encoding="utf-8")
    inner, outer = Location(str(source), 2), Location(str(source), 3)
    assert place_of(AtPlace(1.0, "where(x)", "where(x) * softcap", places=(inner, outer))) == outer
    assert place_of(AtPlace(1.0, "where(x)", "where(x) * 2", places=(inner, outer))) == inner
    assert place_of(OfArguments(1.0, "a", "b", place=outer)) == outer


@pytest.mark.parametrize(
    ("reason", "words", "order", "rightly_left_out"),
    [
        # half a sink, where the sink is known to count as another number
        ("sink", "the sink counts as exp(sink) relative to itself", 2.0, True),
        ("sink", "the sink counts as exp(sink) relative to itself", 1.0, False),
        # a finding about keys, which a change of numbers need not repeat
        ("window", "attends key 1: hidden by the window", 2.0, False),
        ("arithmetic", "the errors are large", 2.0, False),
    ],
)
def test_an_unlikely_change_does_not_stand_beside_a_known_number(
    reason: Reason, words: str, order: float, rightly_left_out: bool
) -> None:
    change = AtPlace(order, "load(sinks_ptr)", "load(sinks_ptr) * 0.5", element="f32", right=10)
    repair = Repair("softmax.py:53", "row_max = tl.load(sinks_ptr)", change.old, change.new, launches=30, failed=18)
    assert is_chance(repair, change, Finding(reason, words)) is rightly_left_out


@pytest.mark.parametrize(
    ("order", "steps", "rightly_left_out"),
    [
        # tiles that begin at key 0 are right too, where a window's first tile is lost
        (5.0, False, True),
        (5.0, True, False),
        # another variable is what may have been meant
        (3.5, False, False),
    ],
)
def test_an_odd_limit_of_a_loop_does_not_stand_beside_a_mask_that_is_known(
    order: float, steps: bool, rightly_left_out: bool
) -> None:
    change = AtPlace(order, "(begin + 31) // 32", "((begin + 31) // 32) // 31", element="i32", right=10, steps=steps)
    repair = Repair("rows.py:31", "return (x + y - 1) // y", change.old, change.new, launches=30, failed=18)
    assert is_chance(repair, change, Finding("window", "misses keys 43 to 63")) is rightly_left_out
