"""Reasons of survivors: each names changes that the kernels of today have, and a new survivor stands out."""

from functools import cache
from pathlib import Path

import pytest

from fuzz_attn.case.families import Family
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.mutation import report
from fuzz_attn.mutation.audit import SURVEY_CASES
from fuzz_attn.mutation.messages import Start
from fuzz_attn.mutation.pool import Crew
from fuzz_attn.mutation.results import Audit, Outcome
from fuzz_attn.mutation.subjects import Mutant, Subject
from fuzz_attn.mutation.survivors import Reason, Spot, load_reasons, sort, source_of
from fuzz_attn.report.plain_text import text_of

REASONS = load_reasons(Path(__file__).with_name("ir_survivors.toml"))
KERNELS: dict[Family, tuple[str, ...]] = {
    "unified": ("kernel_unified_attention_2d", "kernel_unified_attention_3d", "reduce_segments"),
    "paged": ("kernel_paged_attention_2d",),
    "context": ("kernel_context_attention",),
}


@cache
def mutants_of(family: Family) -> tuple[Mutant, ...]:
    with Crew(Start(family, None, 1, "", ""), 1) as crew:
        subjects = crew.survey(SURVEY_CASES)
    return tuple(subject.mutant for subject in subjects if subject.mutant is not None)


def changes_of(spot: Spot, mutants: tuple[Mutant, ...]) -> set[str]:
    return {f"{m.operation}#{m.ordinal}/{m.change}" for m in mutants if spot.covers(m)}


@pytest.mark.parametrize("family", KERNELS)
def test_each_names_changes_that_there_are(family: Family) -> None:
    mutants = mutants_of(family)
    for reason in REASONS:
        for spot in reason.at:
            if set(spot.kernels) & set(KERNELS[family]):
                assert changes_of(spot, mutants) == set(spot.changes), f"{reason.name}: {spot.source}"


def test_each_names_its_kernels() -> None:
    every = {kernel for kernels in KERNELS.values() for kernel in kernels}
    assert REASONS
    assert all(spot.kernels and set(spot.kernels) <= every for reason in REASONS for spot in reason.at)


LINE = 20
HERE = Mutant(
    "kernel_unified_attention_2d", "common/scores.py", LINE, "arith.minnumf", 0, "constant doubled", "constant"
)
ELSEWHERE = Mutant("reduce_segments", "common/scores.py", LINE, "arith.minnumf", 0, "constant doubled", "constant")
REASON = Reason(
    "nobody looks",
    (Spot("common/scores.py", source_of(HERE), ("arith.minnumf#0/constant doubled",), (HERE.kernel,)),),
    "not_looked_at",
)


def test_survivors_are_sorted_by_their_reason() -> None:
    known, news = (Outcome(Subject(mutant.name, mutant), "survived") for mutant in (HERE, ELSEWHERE))
    assert sort([news, known], [REASON]) == (((REASON, (known,)),), (news,))
    assert sort([known], []) == ((), (known,))


def test_a_report_tells_new_survivors_from_known_ones() -> None:
    outcomes = tuple(Outcome(Subject(mutant.name, mutant), "survived") for mutant in (HERE, ELSEWHERE))
    told = text_of(report.render(Audit("unified", "unified", 1, 400, 1.0, 1, {}, outcomes), (REASON,)), 200)
    assert "1 survivor explained, not looked at: nobody looks" in told
    assert "1 survivor that nothing explains" in told
    assert "1 explained, 1 not" in told


def test_a_file_that_is_not_there_explains_nothing(tmp_path: Path) -> None:
    assert load_reasons(tmp_path / "none.toml") == ()


def test_a_file_that_is_no_reasons_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[one]\nbecause = 1\n")
    with pytest.raises(FuzzAttnError, match=r"reasons '.*bad\.toml'"):
        load_reasons(tmp_path / "bad.toml")
