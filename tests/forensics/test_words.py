"""Words of findings, and the heatmap as text."""

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import HeadLayout, PageLayout, Sequence
from fuzz_attn.forensics.explain import (
    difference,
    in_first_page,
    siblings,
    with_more_heads,
    with_one_page,
    without_empty,
    without_limit,
)
from fuzz_attn.forensics.explanation import (
    Explanation,
    Finding,
    Heatmap,
    Row,
    cut_words,
    factor,
    is_plausible,
    keys,
    ranges,
    rows_of_case,
    told_apart,
    without_numbers,
)
from fuzz_attn.report import failure as report
from fuzz_attn.report.printing import text_of


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([3], "3"), ([3, 4], "3 and 4"), ([5, 3, 4], "3 to 5"), ([1, 3, 5, 6, 7], "1, 3 and 5 to 7"), ([], "none")],
)
def test_ranges(numbers: list[int], words: str) -> None:
    assert ranges(numbers) == words


@pytest.mark.parametrize(
    ("number", "expected"),
    [(-0.5, True), (1024.0, True), (1025.0, False), (4e-31, False), (0.0, False), (float("inf"), False)],
)
def test_only_usual_factors_are_plausible(number: float, *, expected: bool) -> None:
    assert is_plausible(number) is expected


def test_long_ranges_are_cut() -> None:
    assert ranges(range(0, 40, 2)) == "0, 2, 4, 6, 8 and 15 more"


def test_keys() -> None:
    assert (keys([4]), keys([4, 5, 6])) == ("key 4", "keys 4 to 6")


@pytest.mark.parametrize(
    ("number", "words"),
    [(1 / 448, "1/448"), (2.0, "2"), (-0.5, "-1/2"), (1.00003, "1.00003"), (0.9997, "0.9997"), (0.3, "0.3"), (0, "0")],
)
def test_factors(number: float, words: str) -> None:
    assert factor(number) == words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("query 0 attends key 2", "query 11 attends keys 3 to 7, 9 and 2 more"),
        ("head 1: scores (largest -7e+04)", "head 0: scores (largest 3.5)"),
    ],
)
def test_words_of_one_cause_are_the_same_without_numbers(one: str, other: str) -> None:
    assert without_numbers(one) == without_numbers(other) != one


def test_types_and_files_keep_their_numbers() -> None:
    assert without_numbers("fp8 in float16 (k2.py)") == "fp8 in float16 (k2.py)"


@pytest.mark.parametrize(
    ("finding", "cause"),
    [
        (Finding("causal", "query 0 attends key 1"), "causal: query # attends key #"),
        (Finding("causal", "query 0 attends key 1", vague=True), ""),
        (Finding("scale", "scores are 2 times what they should be"), ""),
    ],
)
def test_only_a_finding_that_leaves_no_other_is_a_cause(finding: Finding, cause: str) -> None:
    assert Explanation((finding,)).cause == cause


def test_rows_know_their_places() -> None:
    case = AttentionCase((Sequence(1, 2), Sequence(2)), heads=HeadLayout(1, 2))
    rows = rows_of_case(case)
    assert len(rows) == 6
    assert rows[-1] == Row(token=2, head=1, sequence=1, query=1, position=1, kv_head=0, end=2)


def test_siblings_are_longer_and_have_two_sequences() -> None:
    case = AttentionCase((Sequence(1),), window=2, pages=PageLayout(block_size=8))
    for sibling in siblings(case):
        assert len(sibling.sequences) == 2
        assert sibling.sequences[0].seq_len > 20
        assert sibling.window >= 2


def test_siblings_of_decodes_keep_their_one_token() -> None:
    case = AttentionCase((Sequence(1),), family="paged")
    assert {sequence.query_len for sibling in siblings(case) for sequence in sibling.sequences} == {1}


def test_a_case_with_groups_needs_no_more_heads() -> None:
    assert with_more_heads(AttentionCase((Sequence(1),), heads=HeadLayout(2, 2))) is None


def test_the_longest_sibling_also_has_groups() -> None:
    assert [case.heads.num_query_heads for case in siblings(AttentionCase((Sequence(1),)))] == [1, 1, 1, 4]


def test_a_case_without_its_empty_sequences() -> None:
    case = AttentionCase((Sequence(0, 3), Sequence(2)))
    assert without_empty(case) == AttentionCase((Sequence(2),))
    assert without_empty(AttentionCase((Sequence(2),))) is None
    assert without_empty(AttentionCase((Sequence(0, 3),))) is None


def test_a_case_with_the_keys_of_one_page() -> None:
    pages = PageLayout(block_size=8)
    case = AttentionCase((Sequence(2, 30), Sequence(1, 2)), pages=pages)
    assert with_one_page(case) == AttentionCase((Sequence(2, 6), Sequence(1, 2)), pages=pages)
    assert with_one_page(AttentionCase((Sequence(2, 6),), pages=pages)) is None
    assert with_one_page(AttentionCase((Sequence(9),), pages=pages)) is None


def test_the_first_page_is_page_0_of_one_sequence() -> None:
    pages = PageLayout(block_size=8, permuted=True, shared_prefix=1, spare_blocks=2)
    found = in_first_page(AttentionCase((Sequence(1, 2), Sequence(2, 30)), pages=pages))
    assert found == AttentionCase((Sequence(2, 6),), pages=PageLayout(block_size=8, spare_blocks=2))
    assert in_first_page(found) is None


def test_only_a_case_without_a_window_gets_one_without_a_limit() -> None:
    case = AttentionCase((Sequence(1),))
    larger = without_limit(case)
    assert larger is not None
    assert difference(case, larger) == "mask: causal, window of 4096 keys"
    assert without_limit(AttentionCase((Sequence(1),), window=3)) is None


def test_the_heatmap_draws_bars_and_the_masks_edges() -> None:
    heatmap = Heatmap(0, 1, (0, 1), 0, 3, ((1.0, 0.0), (0.5, 0.5)), ((1.0, 0.0), (0.0, 1.0)), ("10", "01"))
    found = Explanation((Finding("window", "query 1 attends key 0"),), heatmap, 3)
    assert text_of(report.render_explanation(found)).splitlines()[:9] == [
        "Why: window",
        "  query 1 attends key 0",
        "Weights of head 1 in sequence 0",
        "      used  0",
        "   query 0 │█│",
        "   query 1  ▅│▅│",
        "     right  0",
        "   query 0 │█│",
        "   query 1   │█│",
    ]


def test_a_sentence_names_the_larger_case() -> None:
    found = Explanation((Finding("tile", "query 0 misses key 64"),), longer="sequence 0: 75 in the cache before")
    assert found.sentence == "tile: query 0 misses key 64 (in a larger case)"


@pytest.mark.parametrize(
    ("own", "other", "words"),
    [
        ("query 0: A, or B 2", "query 7: B 1/2", "query 0: B 2"),
        ("query 0: A", "query 7: A", "query 0: A"),
        ("query 0: A, or B", "query 7: C", None),
        ("no subject", "no subject", "no subject"),
    ],
)
def test_another_case_tells_apart_what_a_vague_finding_leaves_open(own: str, other: str, words: str | None) -> None:
    told = told_apart(Finding("sink", own, vague=True), Finding("scale", other))
    assert told == (None if words is None else Finding("scale", words))
    assert told_apart(Finding("sink", own, vague=True), Finding("scale", other, vague=True)) is None


@pytest.mark.parametrize(
    ("number", "right", "bits"),
    [(0, 256, 8), (-43, 213, 8), (4464, 70000, 16), (5, 5, 0), (3, 4, 0), (-1, 2**32 - 1, 8)],
)
def test_numbers_that_are_others_with_fewer_bits(number: int, right: int, bits: int) -> None:
    assert cut_words(number, right) == (f", which is page or slot {right} cut to {bits} bits" if bits else "")


def test_the_cause_of_a_finding_stands_in_place_of_its_words() -> None:
    finding = Finding("address", "loads element 3", vague=True, cause="out_of_bounds at k.py:3")
    assert Explanation((finding,)).cause == "out_of_bounds at k.py:3"
