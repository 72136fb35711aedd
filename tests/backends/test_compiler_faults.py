"""Faults of a compiler, and a missing barrier, which the simulator does not have: it runs what the source says."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypes, HeadLayout, Sequence
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Order, Setup

TARGETS = Path(__file__).parents[1] / "sample_targets" / "compiler_faults.py"
CASE = AttentionCase(
    sequences=(Sequence(16, 24),), heads=HeadLayout(2, 4, 128), dtypes=DTypes("float16", "float16", "float16")
)


@pytest.mark.parametrize("name", ["merges_in_two_warps", "compares_after_broadcasting"])
def test_what_only_a_compiler_does_wrong_passes_in_the_simulator(name: str) -> None:
    with IsolatedWorker(Setup(f"{TARGETS}:{name}", "unified", "simulator")) as worker:
        assert worker.judge(Order(CASE)).verdict.passed


def test_assembly_with_memory_is_not_judged_in_the_simulator() -> None:
    with IsolatedWorker(Setup(f"{TARGETS}:lacks_a_barrier", "unified", "simulator")) as worker:
        answer = worker.judge(Order(CASE))
    assert not answer.judged
    assert "tt.elementwise_inline_asm of st.global.f32 [$1], $2 is not supported" in str(answer)
