"""Larger cases of the same kind: what is said of the small case beside what they tell."""

from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import Sequence
from fuzz_attn.forensics.explain import explain
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.loading import load_target

IN_TORCH = Path(__file__).parents[1] / "sample_targets" / "torch_attention.py"


def test_a_guess_at_addresses_ends_with_the_reason_that_a_larger_case_tells() -> None:
    right = load_target(f"{IN_TORCH}:unified_attention", "unified")

    @wraps(right.call)
    def doubled(**given: Any) -> None:
        right.call(**given | {"softmax_scale": 2 * given["softmax_scale"]})

    experiment = Experiment(AttentionCase((Sequence(1, 1),)), replace(right, call=doubled), InterpreterBackend())
    found = explain(experiment)
    assert found.longer
    assert found.words == "query 0 of sequence 0, head 0: the scores have a wrong scale (factor 2)"
    assert {finding.reason for finding in found.findings} == {"scale"}
