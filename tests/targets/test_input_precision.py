"""How dots of float32 round is read from the lowered kernels, unless the target states it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import fuzz_attn
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypes, HeadLayout, Sequence
from fuzz_attn.engine.case_judge import CaseJudge
from fuzz_attn.engine.messages import Order
from fuzz_attn.mutation.seeded.edited_kernels import target_with_seeded_bug
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.targets.input_precision import with_precision
from fuzz_attn.targets.loading import load_target
from fuzz_attn.targets.target import Target

TABLES = Path(fuzz_attn.__file__).parent / "mutation" / "seeded" / "tables"
FLOAT32, BFLOAT16 = (
    AttentionCase(
        sequences=(Sequence(3, 20),),
        heads=HeadLayout(head_size=16),
        dtypes=DTypes(name, name, name),
    )
    for name in ("float32", "bfloat16")
)


@pytest.fixture
def in_tf32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Our unified attention without input_precision, which states nothing of how it rounds."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    target = target_with_seeded_bug(TABLES, "dots_in_tf32", "unified")
    return dataclasses.replace(target, rounding=None)


def test_what_the_lowered_kernels_say_is_allowed_and_told_once(in_tf32: Target) -> None:
    judge = CaseJudge(in_tf32, SimulatorBackend())
    assert not judge.judge(Order(BFLOAT16)).notes
    first, second = judge.judge(Order(FLOAT32)), judge.judge(Order(FLOAT32))
    assert first.verdict.passed, first.verdict.message
    assert second.verdict.passed
    (note,) = first.notes
    assert note.startswith("Its dots of float32 have input_precision = 'tf32', as Triton lowered them")
    assert not second.notes


@pytest.mark.parametrize("where", ["binding", "target"])
def test_a_target_that_states_its_precision_is_held_to_it(where: str, in_tf32: Target) -> None:
    if where == "target":
        target = dataclasses.replace(in_tf32, rounding=RoundingModel())
    else:
        target = dataclasses.replace(in_tf32, binding={"rounding": {"input_precision": "ieee"}})
    answer = CaseJudge(target, SimulatorBackend()).judge(Order(FLOAT32))
    assert (answer.verdict.property_name, answer.verdict.kind) == ("oracle", "mismatch")
    assert not answer.notes


@pytest.mark.parametrize(
    ("lowered", "expected"),
    [
        ((), "ieee"),
        (("ieee",), "ieee"),
        (("tf32x3", "ieee"), "tf32x3"),
        (("tf32x3", "tf32"), "tf32"),
        (("new",), "ieee"),
    ],
)
def test_the_coarsest_precision_counts(lowered: tuple[str, ...], expected: str) -> None:
    target = dataclasses.replace(load_target("unified"), rounding=None)
    assert with_precision(target, lowered).rounding_model.input_precision == expected
