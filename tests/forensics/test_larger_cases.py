"""Larger cases of the same kind: what is said of the small case beside what they tell."""

from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.errors import ProbeError
from fuzz_attn.forensics import inquiry
from fuzz_attn.forensics.explain import explain
from fuzz_attn.forensics.explanation import Finding
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


def test_a_larger_case_that_is_not_promised_tells_nothing() -> None:
    right = load_target(f"{IN_TORCH}:unified_attention", "unified")

    @wraps(right.call)
    def doubled(**given: Any) -> None:
        right.call(**given | {"softmax_scale": 2 * given["softmax_scale"]})

    wrong = replace(right, call=doubled, domain=msgspec.structs.replace(right.domain, no_context=True))
    found = explain(Experiment(AttentionCase((Sequence(2),)), wrong, InterpreterBackend()))
    assert found.findings
    assert not found.longer


def test_a_case_with_one_column_of_values_is_explained() -> None:
    wrong = load_target(f"{IN_TORCH}:window_one_too_long", "unified")
    case = AttentionCase((Sequence(3, 5),), heads=HeadLayout(head_size=1), window=2)
    found = explain(Experiment(case, wrong, InterpreterBackend()))
    assert found.words == "query 0 of sequence 0 attends key 3: hidden by the window of 2 (distance 2, one too far)"


def _time_is_up(*_: object) -> list[Finding]:
    raise ProbeError("the time for more launches was up")


@pytest.mark.parametrize("later", ["softcap_findings", "leak_findings"])
def test_what_is_known_when_the_time_is_up_is_said(later: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, later, _time_is_up)
    right = load_target(f"{IN_TORCH}:window_one_too_long", "unified")

    @wraps(right.call)
    def with_nan(**given: Any) -> None:
        right.call(**given)
        given["out"][-1] = float("nan")

    case = AttentionCase((Sequence(3, 5),), window=2)
    found = explain(Experiment(case, replace(right, call=with_nan), InterpreterBackend()))
    assert found.reason == "window", found.findings
