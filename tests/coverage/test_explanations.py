"""Explanations of gaps: each names one line of one kernel file, no campaign contradicts one, and none is missing."""

from pathlib import Path

import msgspec
import pytest

from fuzz_attn.case.families import Family
from fuzz_attn.coverage import explanations, mask_coverage
from fuzz_attn.coverage.explanations import Explanation
from fuzz_attn.coverage.mask_coverage import Mask
from fuzz_attn.engine.campaign import Campaign, Plan
from fuzz_attn.engine.listeners.results import Results
from fuzz_attn.engine.messages import Setup
from fuzz_attn.mutation.seeded.edited_kernels import kernels_folder

STORED = Mask(
    "k/common/outputs.py", 41, "kernel_unified_attention_2d", "store", 0, "tl.store(", True, ("all true", "mixed")
)
UNEXPLAINED = Mask(
    "k/mine.py", 7, "kernel_unified_attention_2d", "store", 0, "tl.store(x, y, mask=z)", True, ("all true",)
)


@pytest.mark.parametrize("entry", explanations.load().explanation, ids=lambda entry: f"{entry.file}-{entry.source}")
def test_explanation_names_one_line(entry: Explanation) -> None:
    lines = [line.strip() for line in (kernels_folder() / entry.file).read_text(encoding="utf-8").splitlines()]
    assert lines.count(entry.source) == 1
    below = lines.index(entry.source) + 1
    assert bool(entry.continued) == entry.source.endswith("(")
    assert entry.continued in ("", *lines[below : below + 2])
    assert lines.count(entry.continued) == 1 or not entry.continued


def test_call_over_several_lines_is_explained_on_its_second_line() -> None:
    (gap,) = explanations.gaps([msgspec.structs.replace(STORED, line=43, text="output,")], "unified")
    assert gap.because.startswith("a program that stores has a live row")


def test_only_explained_gaps_have_an_explanation() -> None:
    stored, unexplained = explanations.gaps([STORED, UNEXPLAINED], "unified")
    assert stored.because.startswith("a program that stores has a live row")
    assert (stored.missing, unexplained.missing, unexplained.because) == (("all false",), ("all false", "mixed"), "")


def test_partly_explained_gap_lists_the_rest() -> None:
    (gap,) = explanations.gaps([msgspec.structs.replace(STORED, seen=("mixed",))], "unified")
    assert (gap.missing, gap.because) == (("all true",), "")


def test_target_of_a_user_has_no_explanations() -> None:
    assert [gap.because for gap in explanations.gaps([STORED], "mine.py:unified")] == [""]


def test_nothing_is_explained_without_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanations, "FILE", Path("missing.toml"))
    explanations.load.cache_clear()
    try:
        assert [gap.because for gap in explanations.gaps([STORED], "unified")] == [""]
    finally:
        explanations.load.cache_clear()


def test_summary_line_counts_masks() -> None:
    complete = msgspec.structs.replace(STORED, line=9, seen=mask_coverage.OUTCOMES)
    assert explanations.summary_line((complete,), "mine") == "1 of 1 masks seen all true, all false and mixed"
    expected = "1 of 3 masks seen all true, all false and mixed; 1 explained; 1 lacking (1 never mixed)"
    assert explanations.summary_line((STORED, UNEXPLAINED, complete), "unified") == expected


CASES: dict[Family, int] = {"unified": 2500, "paged": 250, "context": 500, "chunked": 250}
"""Cases of seed 1 after which a campaign of a family leaves nothing unexplained, with a margin."""


@pytest.mark.parametrize("family", CASES)
def test_campaign_leaves_no_gap_and_contradicts_no_explanation(family: Family, tmp_path: Path) -> None:
    plan = Plan(Setup(family), 0, 1, 1, None, CASES[family], tmp_path / "run", tmp_path / "found")
    results = Results()
    Campaign(plan, results).run()
    masks = results.statistics.masks
    gaps = explanations.gaps(masks, family)
    assert [(gap.mask.kernel, gap.mask.line, gap.mask.text, gap.missing) for gap in gaps if not gap.because] == []
    contradicted = [
        (entry.source, mask.kernel, mask.line)
        for mask in masks
        for entry in explanations.load().explanation
        if entry.covers(mask, family) and set(entry.never) & set(mask.seen)
    ]
    assert contradicted == []
