"""Known survivors: each reason names changes that our kernels have, and a new survivor stands out."""

from functools import cache
from pathlib import Path

import pytest

from fuzz_attn.case.families import Family
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.mutation import report, survivors
from fuzz_attn.mutation.audit import SURVEY_CASES
from fuzz_attn.mutation.audit_pool import AuditPool
from fuzz_attn.mutation.messages import AuditSetup
from fuzz_attn.mutation.mutant import IrChange, Mutant
from fuzz_attn.mutation.results import Audit, Outcome
from fuzz_attn.mutation.survivors import Reason, Spot, load_reasons, own_reasons, sort, source_of
from fuzz_attn.report.plain_text import text_of

REASONS = own_reasons()
KERNELS: dict[Family, tuple[str, ...]] = {
    "unified": ("kernel_unified_attention_2d", "kernel_unified_attention_3d", "reduce_segments"),
    "paged": ("kernel_paged_attention_2d",),
    "context": ("kernel_context_attention",),
}


@cache
def changes_of_kernels(family: Family) -> tuple[IrChange, ...]:
    with AuditPool(AuditSetup(family, None, 1, ""), 1) as pool:
        mutants = pool.survey(SURVEY_CASES)
    return tuple(mutant.ir_change for mutant in mutants if mutant.ir_change is not None)


def covered(spot: Spot, changes: tuple[IrChange, ...]) -> set[str]:
    return {f"{c.operation}#{c.ordinal}/{c.change}" for c in changes if spot.covers(c)}


@pytest.mark.parametrize("family", KERNELS)
def test_each_reason_names_changes_that_exist(family: Family) -> None:
    changes = changes_of_kernels(family)
    for reason in REASONS:
        for spot in reason.at:
            if set(spot.kernels) & set(KERNELS[family]):
                assert covered(spot, changes) == set(spot.changes), f"{reason.name}: {spot.source}"


def test_each_reason_names_its_kernels() -> None:
    every = {kernel for kernels in KERNELS.values() for kernel in kernels}
    assert REASONS
    assert all(spot.kernels and set(spot.kernels) <= every for reason in REASONS for spot in reason.at)


LINE = 20
HERE = IrChange(
    "kernel_unified_attention_2d", "common/scores.py", LINE, "arith.minnumf", 0, "constant doubled", "constant"
)
ELSEWHERE = IrChange("reduce_segments", "common/scores.py", LINE, "arith.minnumf", 0, "constant doubled", "constant")
REASON = Reason(
    "no test covers it",
    (Spot("common/scores.py", source_of(HERE), ("arith.minnumf#0/constant doubled",), (HERE.kernel,)),),
    "not_covered",
)


def test_survivors_are_sorted_by_their_reason() -> None:
    known, new = (Outcome(Mutant(change.name, change), "survived") for change in (HERE, ELSEWHERE))
    assert sort([new, known], [REASON]) == (((REASON, (known,)),), (new,))
    assert sort([known], []) == ((), (known,))


def test_a_report_separates_new_survivors_from_known_ones() -> None:
    outcomes = tuple(Outcome(Mutant(change.name, change), "survived") for change in (HERE, ELSEWHERE))
    text = text_of(report.render(Audit("unified", "unified", 1, 400, 1.0, 1, {}, outcomes), (REASON,)), 200)
    assert "1 survivor explained, not covered: no test covers it" in text
    assert "1 survivor without a known reason" in text
    assert "1 explained, 1 not" in text


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FuzzAttnError, match=r"reasons '.*none\.toml': .*No such file"):
        load_reasons(tmp_path / "none.toml")


def test_an_installed_package_has_no_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivors, "OWN_REASONS", tmp_path / "none.toml")
    assert own_reasons() == ()


def test_a_malformed_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[one]\nbecause = 1\n")
    with pytest.raises(FuzzAttnError, match=r"reasons '.*bad\.toml'"):
        load_reasons(tmp_path / "bad.toml")
