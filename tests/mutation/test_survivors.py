"""Known survivors: each reason names changes that our kernels have, and a new survivor stands out."""

import re
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.mutation import audit_report, audit_results
from fuzz_attn.mutation.audit import AuditPool
from fuzz_attn.mutation.audit_results import (
    Audit,
    AuditSetup,
    Batch,
    Evidence,
    IrChange,
    Mutant,
    Outcome,
    Reason,
    Spot,
    State,
    load_reasons,
    own_reasons,
    own_score,
    refuted,
    sort,
    source_of,
    with_equivalents,
)
from fuzz_attn.operations.registry import FamilyName
from fuzz_attn.report.printing import text_of

REASONS = own_reasons()
SURVEY: dict[FamilyName, tuple[int, int]] = {
    "unified": (3, 60),
    "paged": (1, 20),
    "context": (1, 20),
    "varlen": (1, 24),
    "extend": (1, 60),
    "token_decode": (1, 24),
    "mla_decode": (1, 20),
    "merge_states": (1, 2),
    "cache_write": (1, 20),
}
"""A seed and a number of its first cases, which launch every kernel of which a reason names a change.

Under other seeds this takes hundreds of cases in unified.
"""
CHECKED: dict[FamilyName, tuple[Batch, ...]] = {
    "unified": (Batch((), 2, 6, enough=6),),
    "paged": (Batch((), 1, 2, enough=2),),
    "context": (Batch((), 1, 2, enough=2),),
    "varlen": (Batch((), 1, 2, enough=2),),
    "extend": (Batch((), 1, 2, enough=2),),
    "token_decode": (Batch((), 1, 2, enough=2),),
    "mla_decode": (Batch((), 1, 2, enough=2),),
    "merge_states": (Batch((), 1, 2, enough=2),),
    "cache_write": (Batch((), 1, 20, enough=4),),
}
"""Few cases of one seed, with watched operations. Every audit checks the same claims in hundreds of cases."""
KERNELS: dict[FamilyName, tuple[str, ...]] = {
    "unified": ("kernel_unified_attention_2d", "kernel_unified_attention_3d", "reduce_segments"),
    "paged": ("kernel_paged_attention_2d",),
    "context": ("kernel_context_attention",),
    "varlen": ("kernel_varlen_attention",),
    "extend": ("kernel_extend_attention",),
    "token_decode": ("kernel_token_split", "kernel_token_merge"),
    "mla_decode": ("kernel_mla_split", "kernel_mla_merge"),
    "merge_states": ("kernel_merge_states",),
    "cache_write": ("kernel_cache_write",),
}
SLOW: set[FamilyName] = {"unified", "paged", "context", "extend", "token_decode"}
"""Families whose kernels take seconds each. `make slow` surveys them every night."""


def covered(spot: Spot, changes: tuple[IrChange, ...]) -> set[str]:
    return {f"{c.operation}#{c.ordinal}/{c.change}" for c in changes if spot.covers(c)}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=pytest.mark.slow) if family in SLOW else family for family in KERNELS]
)
def test_reasons_name_changes_that_exist_and_no_claim_is_refuted(family: FamilyName) -> None:
    """The audit checks the claims in more cases: here each change runs in the first ones that have it."""
    with AuditPool(AuditSetup(family, None, ""), 1) as pool:
        surveyed = pool.survey(*SURVEY[family])
        changes = tuple(mutant.ir_change for mutant in surveyed if mutant.ir_change is not None)
        assert missing(family, changes) == []
        claims = [reason for reason in REASONS if reason.equivalent]
        mutants = tuple(Mutant(c.name, c) for c in changes if any(reason.covers(c) for reason in claims))
        batches = [replace(batch, mutants=mutants) for batch in CHECKED[family]]
        outcomes = [outcome for batch in batches for outcome in pool.judge([batch]) if outcome is not None]
    assert [(reason.name, outcome) for reason, outcome in refuted(outcomes, REASONS)] == []
    assert {outcome.state for outcome in with_equivalents(outcomes, REASONS)} <= {"equivalent"}
    ran = {outcome.mutant for outcome in outcomes if outcome.evidence.cases}
    assert len(ran) >= 0.7 * len(mutants)


def missing(family: FamilyName, changes: tuple[IrChange, ...]) -> list[tuple[str, str, set[str]]]:
    """Return each line of a reason with the changes that it names and that the kernels of a family do not have."""
    spots = [(reason, spot) for reason in REASONS for spot in reason.at if set(spot.kernels) & set(KERNELS[family])]
    lacking = [(reason.name, spot.source, set(spot.changes) ^ covered(spot, changes)) for reason, spot in spots]
    return [entry for entry in lacking if entry[2]]


SERIES = (-1.0 / 3.0, 2.0 / 15.0, -17.0 / 315.0, 62.0 / 2835.0)


def units_moved(change: str) -> float:
    """Return by how many units of itself a change of the tail of the series moves the tanh, at most up to 1/4.

    A kernel with a second loop has its sums from 3 on and its products from 4 on.
    """
    for name, count in (("addf", 3), ("mulf", 4)):
        change = re.sub(rf"{name}#(\d+)", lambda found: f"{name}#{int(found[1]) % count}", change)  # noqa: B023

    def rounded(numbers: torch.Tensor, name: str) -> torch.Tensor:
        return numbers.bfloat16().double() if change == f"{name}/rounded to bfloat16" else numbers

    square = torch.linspace(0.0, 0.25, 100_001, dtype=torch.float64) ** 2
    moved, exact = torch.zeros_like(square), torch.zeros_like(square)
    for place, constant in enumerate(reversed(SERIES)):
        exact = square * (constant + exact)
        wrong = 2 * constant if change == f"arith.addf#{place - 1}/constant doubled" else constant
        added = moved if change == f"arith.addf#{place - 1}/left operand only" else wrong + moved
        added = rounded(added, f"arith.addf#{place - 1}") if place else added
        factor = 2 * added if change == f"arith.mulf#{place}/constant doubled" else added
        product = square if change == f"arith.mulf#{place}/left operand only" else square * factor
        moved = rounded(product, f"arith.mulf#{place}")
    return float(((moved - exact) / (1 + exact)).abs().max()) * 2.0**24


@pytest.mark.parametrize(
    ("name", "low", "high"), [("within_what_the_bound_allows", 0.0, 35.0), ("knee_seldom_reached", 215.0, 260.0)]
)
def test_changes_of_the_series_move_the_tanh_as_their_reasons_say(name: str, low: float, high: float) -> None:
    (reason,) = (reason for reason in REASONS if reason.name == name)
    moved = [units_moved(change) for spot in reason.at for change in spot.changes]
    assert units_moved("") == 0.0
    assert low < min(moved)
    assert 0.9 * high < max(moved) < high


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
    name="not_covered",
)


def test_survivors_are_sorted_by_their_reason() -> None:
    known, new = (Outcome(Mutant(change.name, change), "survived") for change in (HERE, ELSEWHERE))
    assert sort([new, known], [REASON]) == (((REASON, (known,)),), (new,))
    assert sort([known], []) == ((), (known,))


def test_a_report_separates_new_survivors_from_known_ones() -> None:
    outcomes = tuple(Outcome(Mutant(change.name, change), "survived") for change in (HERE, ELSEWHERE))
    text = text_of(audit_report.render(Audit("unified", "unified", (1,), 400, 1.0, 1, {}, outcomes), (REASON,)), 200)
    assert "1 mutant not found, not covered: no test covers it" in text
    assert "1 mutant not found and without a known reason" in text
    assert "1 explained, 1 not" in text


SAME_VALUE = replace(REASON, equivalent="same value")
SAME_OUTPUT = replace(REASON, equivalent="same output")


def seen(state: State, seed: int = 1, **evidence: int) -> Outcome:
    return Outcome(Mutant(HERE.name, HERE), state, seed, evidence=Evidence(**evidence))


STOPPED = replace(seen("killed", 2), kind="timeout")


def test_only_a_claim_makes_a_mutant_equivalent() -> None:
    outcomes = [seen("unobserved", reached=1000)]
    assert [outcome.state for outcome in with_equivalents(outcomes, [REASON])] == ["unobserved"]
    assert [outcome.state for outcome in with_equivalents(outcomes, [SAME_VALUE])] == ["equivalent"]
    assert own_score(with_equivalents(outcomes, [SAME_VALUE])).of == 0
    other = [Outcome(Mutant(ELSEWHERE.name, ELSEWHERE), "unobserved")]
    assert with_equivalents(other, [SAME_VALUE]) == tuple(other)


@pytest.mark.parametrize(
    ("reason", "second"),
    [
        (SAME_VALUE, seen("killed", 2)),
        (SAME_VALUE, seen("survived", 2, changed=1)),
        (SAME_VALUE, seen("unobserved", 2, reached=3, differed=1)),
        (SAME_VALUE, STOPPED),
        (SAME_OUTPUT, seen("killed", 2)),
        (SAME_OUTPUT, seen("survived", 2, changed=1)),
    ],
)
def test_an_outcome_refutes_a_claim(reason: Reason, second: Outcome) -> None:
    outcomes = (seen("unobserved"), second)
    assert with_equivalents(outcomes, [reason]) == outcomes
    assert refuted(outcomes, [reason]) == [(reason, second)]
    text = text_of(audit_report.render(Audit("unified", "unified", (1, 2), 400, 1.0, 1, {}, outcomes), (reason,)), 200)
    assert f"Refuted: not covered claims the {reason.equivalent}, but of" in text


def test_another_value_that_no_output_uses_leaves_the_claim() -> None:
    outcomes = [seen("unobserved", reached=3, differed=3)]
    assert refuted(outcomes, [SAME_OUTPUT]) == []
    assert [outcome.state for outcome in with_equivalents(outcomes, [SAME_OUTPUT])] == ["equivalent"]


def test_a_launch_stopped_for_its_time_does_not_refute_the_same_output() -> None:
    outcomes = [seen("unobserved"), STOPPED]
    assert refuted(outcomes, [SAME_OUTPUT]) == []
    assert {outcome.state for outcome in with_equivalents(outcomes, [SAME_OUTPUT])} == {"equivalent"}


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FuzzAttnError, match=r"reasons '.*none\.toml': .*No such file"):
        load_reasons(tmp_path / "none.toml")


def test_an_installed_package_has_no_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_results, "OWN_REASONS", tmp_path / "none.toml")
    assert own_reasons() == ()


def test_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    with pytest.raises(FuzzAttnError, match=r"reasons '.*zero\.toml': .*is no file"):
        load_reasons(tmp_path / "zero.toml")


def test_a_malformed_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[one]\nbecause = 1\n")
    with pytest.raises(FuzzAttnError, match=r"reasons '.*bad\.toml'"):
        load_reasons(tmp_path / "bad.toml")
