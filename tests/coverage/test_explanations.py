"""Explanations of gaps: each stands on one line of one kernel file, and a campaign refutes none and needs no other."""

from pathlib import Path

import msgspec
import pytest

from fuzz_attn.case.families import Family
from fuzz_attn.coverage import explanations, mask_coverage
from fuzz_attn.coverage.explanations import Explanation
from fuzz_attn.coverage.mask_coverage import Mask
from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.messages import Setup
from fuzz_attn.mutation.seeded.edited_kernels import kernels_folder

STORED = Mask(
    "z/common/outputs.py", 41, "kernel_unified_attention_2d", "store", 0, "tl.store(", True, ("all true", "mixed")
)
NEWS = Mask("k/mine.py", 7, "kernel_unified_attention_2d", "store", 0, "tl.store(x, y, mask=z)", True, ("all true",))
VISITOR = msgspec.structs.replace(STORED, kernel="kernel_paged_attention_2d", seen=())


@pytest.mark.parametrize("entry", explanations.load().explanation, ids=lambda entry: f"{entry.file}-{entry.source}")
def test_each_stands_on_one_line(entry: Explanation) -> None:
    lines = [line.strip() for line in (kernels_folder() / entry.file).read_text(encoding="utf-8").splitlines()]
    assert lines.count(entry.source) == 1
    below = lines.index(entry.source) + 1
    assert bool(entry.continued) == entry.source.endswith("(")
    assert entry.continued in ("", *lines[below : below + 2])
    assert lines.count(entry.continued) == 1 or not entry.continued


def test_a_call_over_several_lines_is_explained_wherever_triton_sees_it() -> None:
    (gap,) = explanations.gaps([msgspec.structs.replace(STORED, line=43, text="output,")], "unified")
    assert gap.because.startswith("a program that stores has a live row")


def test_what_is_explained_is_told_apart() -> None:
    stored, news = explanations.gaps([STORED, NEWS], "unified")[::-1]
    assert stored.because.startswith("a program that stores has a live row")
    assert (stored.missing, news.missing, news.because) == (("all false",), ("all false", "mixed"), "")


def test_only_what_is_left_of_a_gap_is_news() -> None:
    (gap,) = explanations.gaps([msgspec.structs.replace(STORED, seen=("mixed",))], "unified")
    assert (gap.missing, gap.because) == (("all true",), "")


def test_kernels_of_another_family_are_its_own_campaigns_to_show() -> None:
    (gap,) = explanations.gaps([VISITOR], "unified")
    assert "paged campaigns" in gap.because
    assert [gap.because for gap in explanations.gaps([VISITOR], "paged")] == [""]


def test_other_peoples_kernels_are_not_explained() -> None:
    assert [gap.because for gap in explanations.gaps([STORED], "mine.py:unified")] == [""]


def test_a_line_says_how_much() -> None:
    complete = msgspec.structs.replace(STORED, line=9, seen=mask_coverage.OUTCOMES)
    assert explanations.in_short((complete,), "mine") == "1 of 1 masks seen all true, all false and mixed"
    told = "1 of 3 masks seen all true, all false and mixed; 1 explained; 1 lacking (1 never mixed)"
    assert explanations.in_short((STORED, NEWS, complete), "unified") == told


CASES: dict[Family, int] = {"unified": 1500, "paged": 250, "context": 500, "chunked": 250}
"""After how many cases of seed 1 a campaign of a family leaves nothing unexplained, with room to spare."""


@pytest.mark.parametrize("family", CASES)
def test_a_campaign_leaves_nothing_unexplained_and_refutes_nothing(family: Family, tmp_path: Path) -> None:
    plan = Plan(Setup(family), 0, 1, 1, None, CASES[family], tmp_path / "run", tmp_path / "found")
    masks = Campaign(plan).run().statistics.masks
    gaps = explanations.gaps(masks, family)
    assert [(gap.mask.kernel, gap.mask.line, gap.mask.text, gap.missing) for gap in gaps if not gap.because] == []
    refuted = [
        (entry.source, mask.kernel, mask.line)
        for mask in masks
        for entry in explanations.load().explanation
        if entry.covers(mask, family) and set(entry.never) & set(mask.seen)
    ]
    assert refuted == []
