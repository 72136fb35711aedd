"""A failure of a target that rounds in an undeclared way names the field of the rounding model; a bug names none."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, Scales, Sequence
from fuzz_attn.case.recipes import NormalScores, QQBiasRecipe
from fuzz_attn.mutation.batch_runner import CaseStream
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties import named_causes
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.named_causes import with_rounding_named
from fuzz_attn.targets.loading import load_target
from fuzz_attn.targets.target import Target

FOLDER = Path(__file__).parents[1] / "sample_targets"
CASES = 4

FLOAT32 = AttentionCase(
    (Sequence(3, 150),), heads=HeadLayout(1, 2, 32), softmax_scale=0.3, scores=NormalScores(3.0), seed=1
)
STRONG = AttentionCase(
    (Sequence(3, 20),), heads=HeadLayout(1, 2, 4), softmax_scale=0.3, scores=NormalScores(60.0), seed=1
)


def in_halves(dtype: DTypeName) -> AttentionCase:
    """Return the case with inputs and output in a type of two bytes."""
    return AttentionCase(
        FLOAT32.sequences, heads=FLOAT32.heads, softmax_scale=0.3, scores=NormalScores(3.0), seed=1,
        dtypes=DTypes(dtype, dtype, "float32"),
    )  # fmt: skip


OVER_FP8 = AttentionCase(
    FLOAT32.sequences, heads=FLOAT32.heads, softmax_scale=0.3, seed=1,
    dtypes=DTypes("bfloat16", "float8_e4m3fn", "float32"),
)  # fmt: skip


def capped(softcap: float) -> AttentionCase:
    """Return the case with a soft cap."""
    return AttentionCase(
        FLOAT32.sequences, heads=FLOAT32.heads, softmax_scale=0.3, scores=NormalScores(3.0), softcap=softcap, seed=1
    )


def narrow_target(name: str, **rounding: Any) -> Target:
    return load_target(f"{FOLDER / 'narrow_attention.py'}:{name}", binding=Binding(rounding=rounding))


def explained(target: Target, case: AttentionCase) -> Verdict:
    """Return the verdict on a case, with a hint if it fails."""
    experiment = Experiment(case, target, InterpreterBackend())
    return with_rounding_named(check(experiment), experiment)


def roundings() -> dict[str, dict[str, Any]]:
    """Return the rounding model of each sample target."""
    narrow_target("float32_attention")
    found: dict[str, dict[str, Any]] = sys.modules["fuzz_attn_target_narrow_attention"].ROUNDINGS
    return found


@cache
def stream_of(domain: Domain) -> CaseStream:
    """Return the cases of a domain, which the targets share: a round of them is drawn at a time."""
    return CaseStream(domain, seed=4)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", roundings())
def test_declared_target_passes(name: str) -> None:
    target = narrow_target(name, **roundings()[name])
    stream = stream_of(target.domain)
    for number in range(CASES):
        verdict = check(Experiment(stream[number].case, target, InterpreterBackend()))
        assert verdict.passed, verdict


UNDECLARED: dict[str, tuple[AttentionCase, str]] = {
    "bfloat16_query": (FLOAT32, "rounding.scaled_query = 'bfloat16'"),
    "scaled_query": (in_halves("bfloat16"), "rounding.scaled_query = 'query'"),
    "own_products": (in_halves("float16"), "rounding.products = 'query'"),
    "half_sums": (FLOAT32, "rounding.products = 'float16' and rounding.accumulate = 'float16'"),
    "bfloat16_scores": (FLOAT32, "rounding.scores = 'bfloat16'"),
    "bfloat16_partials": (FLOAT32, "rounding.partials = 'bfloat16'"),
    "bfloat16_output": (FLOAT32, "rounding.output = 'bfloat16'"),
    "bfloat16_weights": (FLOAT32, "rounding.probability = 'bfloat16'"),
    "cache_operands": (OVER_FP8, "rounding.query = 'cache' and rounding.probability = 'cache'"),
    "fp8_weights": (FLOAT32, "rounding.probability = 'float8_e4m3fn'"),
    "tf32_dots": (FLOAT32, "rounding.input_precision = 'tf32'"),
    "plain_torch": (in_halves("bfloat16"), "rounding.scores = 'query' and rounding.output = 'query'"),
    "bf16x3_dots": (STRONG, "rounding.input_precision = 'bf16x3'"),
    "tanh_approx": (capped(20.0), "rounding.tanh_"),
    "tanh_table": (capped(20.0), "rounding.tanh_"),
    "coarse_exp": (FLOAT32, "rounding.exp_units = "),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", UNDECLARED)
def test_failure_of_an_undeclared_target_names_the_field(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_causes, "SEEDS", 1)  # half of the launches already tell them apart
    case, field = UNDECLARED[name]
    verdict = explained(narrow_target(name), case)
    assert not verdict.passed
    assert f"It passes with {field}" in verdict.hint


BUGS: dict[str, AttentionCase] = {
    "window_one_too_long": AttentionCase((Sequence(3, 40),), heads=FLOAT32.heads, window=7, seed=1),
    "transposed_bias": AttentionCase(
        (Sequence(5, 40),), heads=FLOAT32.heads, qq_bias=QQBiasRecipe("dense", scale=0.01), seed=1
    ),
    "swapped_scales": AttentionCase(
        (Sequence(5, 40),),
        heads=FLOAT32.heads,
        dtypes=DTypes("bfloat16", "float8_e4m3fn", "bfloat16"),
        scales=Scales(k=0.5, v=0.51),
        seed=1,
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BUGS)
def test_failure_of_a_bug_names_no_field(name: str) -> None:
    verdict = explained(load_target(f"{FOLDER / 'torch_attention.py'}:{name}"), BUGS[name])
    assert not verdict.passed
    assert not verdict.hint


def test_a_relation_that_fails_names_no_rounding() -> None:
    experiment = Experiment(FLOAT32, narrow_target("float32_attention"), InterpreterBackend())
    failed = Verdict("empty_sequences", "mismatch", "a launch with an empty sequence differs", ratio=3.0)
    assert with_rounding_named(failed, experiment) == failed, "the case itself passes"
