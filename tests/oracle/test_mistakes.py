"""The oracle detects every semantic mistake: a right implementation passes, and each wrong one fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, PageLayout, Scales, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, NormalScores, PositionValues, QQBiasRecipe, SinkRecipe
from fuzz_attn.inputs.tensors import AttentionTensors, materialise
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.reference import attend

Plainly = Callable[..., torch.Tensor]
Writing = Callable[[AttentionTensors, torch.Tensor], AttentionTensors]

BASE = AttentionCase(
    sequences=(Sequence(6, 9), Sequence(0, 5), Sequence(1, 12)),
    heads=HeadLayout(2, 3, 8),
    pages=PageLayout(block_size=4, permuted=True),
    softmax_scale=0.4,
    seed=5,
)
FP8 = {"dtypes": DTypes("bfloat16", "float8_e4m3fn", "bfloat16"), "scales": Scales(k=0.5, v=2.0)}
FP8_Q = {"dtypes": DTypes("float8_e4m3fn", "float8_e4m3fn", "bfloat16"), "scales": Scales(k=0.5, v=2.0)}
OUT = {"dtypes": DTypes("float32", "float32", "float8_e4m3fn"), "scales": Scales(out=0.5)}
CLAMPED = {"dtypes": DTypes("float32", "float32", "float8_e5m2"), "scales": Scales(out=1e-6)}
WIDE = {"scores": NormalScores(spread=4.0)}
ALIBI = {"alibi": AlibiRecipe("arbitrary", 0.5)}

MISTAKES: dict[str, tuple[dict[str, Any], str, Callable[[Any], Any]]] = {
    "window one too long": ({"window": 4}, "window", lambda window: window + 1),
    "window one too short": ({"window": 4}, "window", lambda window: window - 1),
    "causal bound one too far": ({}, "last_key", lambda last: last + 1),
    "own key lost": ({}, "last_key", lambda last: max(0, last - 1)),
    "heads interleaved": ({}, "kv_head", lambda heads: heads[1]),
    "scale dropped": ({}, "scale", lambda _: 1.0),
    "alibi dropped": (ALIBI, "slope", lambda _: 0.0),
    "alibi negated": (ALIBI, "slope", lambda slope: -slope),
    "alibi from the own position": ({**ALIBI, "sinks": SinkRecipe()}, "alibi_origin", lambda origins: origins[1]),
    "bias transposed": ({"qq_bias": QQBiasRecipe("dense")}, "qq_index", lambda index: index[::-1]),
    "bias on the context": ({"qq_bias": QQBiasRecipe("dense")}, "qq_origin", lambda _: 0),
    "sink dropped": ({"sinks": SinkRecipe()}, "sink", lambda sink: sink * 0 - torch.inf),
    "sink counted twice": ({"sinks": SinkRecipe()}, "sinks_counted", lambda _: 2),
    "soft cap dropped": ({"softcap": 1.0, **WIDE}, "softcap", lambda _: 0.0),
    "soft cap after the bias": ({"softcap": 1.0, **ALIBI}, "cap_after_bias", lambda _: True),
    "key scale dropped": (FP8, "k_scale", lambda _: 1.0),
    "value scale dropped": (FP8, "v_scale", lambda _: 1.0),
    "key scale of the values": (FP8, "k_scale", lambda _: 2.0),
    "value scale of the keys": (FP8, "v_scale", lambda _: 0.5),
    "key scale dropped, fp8 queries": (FP8_Q, "k_scale", lambda _: 1.0),
    "value scale dropped, fp8 queries": (FP8_Q, "v_scale", lambda _: 1.0),
    "output scale multiplied": (OUT, "out_scale", lambda factor: 1 / factor),
    "output not clamped": (CLAMPED, "clamp", lambda _: False),
}


def outcome(changes: dict[str, Any], plainly: Plainly, writing: Writing, mistake: tuple[str, Any] | None) -> Any:
    """Return the verdict on attention computed row by row with one mistake, or with none."""
    tensors = materialise(replace(BASE, values=PositionValues(), **changes))

    def choose(name: str, answer: Any) -> Any:
        return mistake[1](answer) if mistake and name == mistake[0] else answer

    return judge(writing(tensors, plainly(tensors, choose)), attend(tensors))


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_fails(mistake: tuple[dict[str, Any], str, Any], plainly: Plainly, writing: Writing) -> None:
    changes, name, change = mistake
    assert outcome(changes, plainly, writing, None).passed
    verdict = outcome(changes, plainly, writing, (name, change))
    assert not verdict.passed
    assert verdict.kind != "mismatch" or verdict.ratio > 2.0


HALVES: tuple[DTypeName, ...] = ("float16", "bfloat16")
LOW_PRECISION = [key for key, mistake in MISTAKES.items() if "dtypes" not in mistake[0]]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", LOW_PRECISION)
def test_mistake_fails_in_half_precision(name: str, dtype: DTypeName, plainly: Plainly, writing: Writing) -> None:
    changes, decision, change = MISTAKES[name]
    changes = {**changes, "dtypes": DTypes(dtype, dtype, dtype)}
    assert outcome(changes, plainly, writing, None).passed
    assert not outcome(changes, plainly, writing, (decision, change)).passed
