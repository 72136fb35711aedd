"""Page map: where keys lie, and which slots kernels may read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import PageLayout, Sequence
from fuzz_attn.case.recipes import PoisonRecipe, TablePoison
from fuzz_attn.inputs.batch_rows import PageMap, page_map
from fuzz_attn.inputs.storage import table_poison
from fuzz_attn.strategies.cases import cases

QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
LAYOUTS = st.builds(
    PageLayout,
    block_size=st.sampled_from((1, 2, 3, 16, 17)),
    permuted=st.booleans(),
    shared_prefix=st.sampled_from((0, 0, 1, 2, 5, 1000)),
    repeated=st.booleans(),
    spare_blocks=st.sampled_from((0, 1, 5)),
    extra_columns=st.sampled_from((0, 1, 4)),
)


@st.composite
def paged_cases(draw: st.DrawFn) -> AttentionCase:
    """Draw cases with more unusual pages than those of ``cases``."""
    return replace(draw(cases(Domain().in_memory())), pages=draw(LAYOUTS))


def used_pages(case: AttentionCase, pages: PageMap) -> list[list[int]]:
    """Return the physical pages of each sequence."""
    counts = [-(-s.seq_len // case.pages.block_size) for s in case.sequences]
    return [row[:count].tolist() for row, count in zip(pages.block_table, counts, strict=True)]


@QUIET
@given(paged_cases())
def test_every_key_is_in_its_page(case: AttentionCase) -> None:
    pages, size, key = page_map(case), case.pages.block_size, 0
    for number, sequence in enumerate(case.sequences):
        for position in range(sequence.seq_len):
            expected = pages.block_table[number, position // size] * size + position % size
            assert pages.slots[key] == expected
            key += 1
    assert len(pages.slots) == len(pages.held) == key
    assert ((pages.slots >= 0) & (pages.slots < pages.num_blocks * size)).all()


@QUIET
@given(paged_cases())
def test_sequences_share_only_the_prefix(case: AttentionCase) -> None:
    used = used_pages(case, page_map(case))
    shared = case.pages.shared_prefix
    prefix = {page for row in used for page in row[:shared]}
    owned = [set(row) - prefix for row in used]
    assert sum(len(pages) for pages in owned) == len(set().union(*owned))


@QUIET
@given(paged_cases())
def test_pages_repeat_only_in_repeated_layouts(case: AttentionCase) -> None:
    for row in used_pages(case, page_map(case)):
        twice = len(row) - len(set(row))
        assert twice == (1 if case.pages.repeated and len(row) > 1 else 0)


@QUIET
@given(paged_cases())
def test_shared_prefix_is_the_same_in_all(case: AttentionCase) -> None:
    case = replace(case, pages=PageLayout(block_size=2, permuted=True, shared_prefix=case.pages.shared_prefix))
    used = used_pages(case, page_map(case))
    longest = max(used, key=len, default=[])
    for row in used:
        common = min(len(row), case.pages.shared_prefix)
        assert row[:common] == longest[:common]


@QUIET
@given(paged_cases())
def test_spare_blocks_are_in_no_sequence(case: AttentionCase) -> None:
    pages = page_map(case)
    used = {page for row in used_pages(case, pages) for page in row}
    # A page replaced by a repeated one is left over, too.
    repeated = sum(len(row) > 1 for row in used_pages(case, pages)) if case.pages.repeated else 0
    left_over = pages.num_blocks - len(used)
    assert left_over >= case.pages.spare_blocks
    assert left_over <= max(1, case.pages.spare_blocks + repeated)


@QUIET
@given(paged_cases(), st.sampled_from(("zero", "negative", "one_past", "huge")))
def test_table_is_garbage_past_the_last_page(case: AttentionCase, kind: TablePoison) -> None:
    case = replace(case, poison=PoisonRecipe(table=kind))
    pages = page_map(case)
    used = used_pages(case, pages)
    widest = max((len(row) for row in used), default=0)
    assert pages.block_table.shape == (len(case.sequences), widest + case.pages.extra_columns)
    for row, own in zip(pages.block_table.tolist(), used, strict=True):
        assert set(row[len(own) :]) <= {table_poison(kind, pages.num_blocks)}


@QUIET
@given(cases(Domain()))
def test_visible_keys_are_those_that_some_row_sees(case: AttentionCase) -> None:
    expected = []
    for sequence in case.sequences:
        seen = np.zeros(sequence.seq_len, dtype=np.bool_)
        for token in range(sequence.query_len):
            position = sequence.context_len + token
            first = max(0, position - case.window + 1) if case.window else 0
            seen[first : position + 1] = True
        expected += seen.tolist()
    assert page_map(case).held.tolist() == expected


@pytest.mark.parametrize(
    ("window", "expected"), [(0, "11111"), (1, "00011"), (2, "00111"), (4, "11111"), (5, "11111"), (9, "11111")]
)
def test_window_hides_keys_by_hand(window: int, expected: str) -> None:
    case = AttentionCase(sequences=(Sequence(2, 3),), window=window)
    assert "".join(str(int(seen)) for seen in page_map(case).held) == expected


def test_pages_in_order_by_hand() -> None:
    layout = PageLayout(block_size=4, shared_prefix=1, spare_blocks=2, extra_columns=1)
    case = AttentionCase(sequences=(Sequence(1, 8), Sequence(0, 0), Sequence(2, 3)), pages=layout)
    pages = page_map(case)
    assert pages.num_blocks == 6
    assert pages.block_table.tolist() == [[0, 1, 2, 6], [6, 6, 6, 6], [0, 3, 6, 6]]
    assert pages.slots.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 12]


def test_order_of_pages_depends_only_on_the_seed() -> None:
    layout = PageLayout(block_size=1, permuted=True)
    case = AttentionCase(sequences=(Sequence(0, 30),), pages=layout)
    table = page_map(case).block_table.tolist()
    assert sorted(table[0]) == list(range(30))
    assert table[0] != list(range(30))
    assert page_map(replace(case, softmax_scale=2.0)).block_table.tolist() == table
    assert page_map(replace(case, seed=1)).block_table.tolist() != table


def test_batch_without_keys_still_has_a_block() -> None:
    pages = page_map(AttentionCase(sequences=(Sequence(0, 0),)))
    assert pages.num_blocks == 1
    assert pages.block_table.shape == (1, 0)
