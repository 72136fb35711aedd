"""Explanations of gaps: each names one line of one kernel file, no case contradicts one, and none is missing."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from fuzz_attn.backends import kernel_coverage
from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.case.families import Family
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.mutation.edited_kernels import kernels_folder
from fuzz_attn.report import mask_gaps
from fuzz_attn.report.mask_gaps import Explanation

STORED = Mask(
    "k/common/outputs.py", 41, "kernel_unified_attention_2d", "store", 0, "tl.store(", True, ("all true", "mixed")
)
UNEXPLAINED = Mask(
    "k/mine.py", 7, "kernel_unified_attention_2d", "store", 0, "tl.store(x, y, mask=z)", True, ("all true",)
)


@pytest.mark.parametrize(
    "entry", mask_gaps.load_explanations().explanation, ids=lambda entry: f"{entry.file}-{entry.source}"
)
def test_explanation_names_one_line(entry: Explanation) -> None:
    lines = [line.strip() for line in (kernels_folder() / entry.file).read_text(encoding="utf-8").splitlines()]
    assert lines.count(entry.source) == 1
    below = lines.index(entry.source) + 1
    assert bool(entry.continued) == entry.source.endswith("(")
    assert entry.continued in ("", *lines[below : below + 2])
    assert lines.count(entry.continued) == 1 or not entry.continued


def test_call_over_several_lines_is_explained_on_its_second_line() -> None:
    (gap,) = mask_gaps.gaps([msgspec.structs.replace(STORED, line=43, text="output,")], "unified")
    assert gap.because.startswith("a program that stores has a live row")


def test_only_explained_gaps_have_an_explanation() -> None:
    stored, unexplained = mask_gaps.gaps([STORED, UNEXPLAINED], "unified")
    assert stored.because.startswith("a program that stores has a live row")
    assert (stored.missing, unexplained.missing, unexplained.because) == (("all false",), ("all false", "mixed"), "")


def test_partly_explained_gap_lists_the_rest() -> None:
    (gap,) = mask_gaps.gaps([msgspec.structs.replace(STORED, seen=("mixed",))], "unified")
    assert (gap.missing, gap.because) == (("all true",), "")


def test_target_of_a_user_has_no_explanations() -> None:
    assert [gap.because for gap in mask_gaps.gaps([STORED], "mine.py:unified")] == [""]


def test_nothing_is_explained_without_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_gaps, "FILE", Path("missing.toml"))
    mask_gaps.load_explanations.cache_clear()
    try:
        assert [gap.because for gap in mask_gaps.gaps([STORED], "unified")] == [""]
    finally:
        mask_gaps.load_explanations.cache_clear()


def test_summary_line_counts_masks() -> None:
    complete = msgspec.structs.replace(STORED, line=9, seen=kernel_coverage.OUTCOMES)
    assert mask_gaps.summary_line((complete,), "mine") == "1 of 1 masks seen all true, all false and mixed"
    expected = "1 of 3 masks seen all true, all false and mixed; 1 explained; 1 lacking (1 never mixed)"
    assert mask_gaps.summary_line((STORED, UNEXPLAINED, complete), "unified") == expected


CASES = Path(__file__).with_name("mask_cases.json")
"""Cases that show every outcome of a long campaign. mask_cases_program.py chooses them anew."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", get_args(Family))
def test_stored_cases_leave_no_gap_and_contradict_no_explanation(
    family: Family, contradicted: Callable[[Iterable[Mask], Family], list[Explanation]]
) -> None:
    orders = msgspec.json.decode(CASES.read_bytes(), type=dict[Family, tuple[Order, ...]])[family]
    with IsolatedWorker(Setup(family, backend="simulator")) as worker:
        answers = [worker.judge(order) for order in orders]
    assert all(answer.verdict.passed for answer in answers)
    masks = kernel_coverage.merged(mask for answer in answers for mask in answer.masks)
    gaps = mask_gaps.gaps(masks, family)
    assert [(gap.mask.kernel, gap.mask.line, gap.mask.text, gap.missing) for gap in gaps if not gap.because] == []
    assert contradicted(masks, family) == []
