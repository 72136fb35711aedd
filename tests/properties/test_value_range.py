"""Value range: outputs outside fail even where the oracle cannot judge, and outputs that may be right pass."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypes, HeadLayout, Sequence
from fuzz_attn.case.recipes import ConstantValues, LevelScores, SinkRecipe
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.oracle.row_blocks import row_blocks
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.launch_properties import value_range, values_seen
from fuzz_attn.strategies.cases import cases
from fuzz_attn.targets.target import Target

JudgeOf = Callable[[str], Callable[[Order], Answer]]

ONES = AttentionCase(
    sequences=(Sequence(2, 30),), heads=HeadLayout(head_size=8), values=ConstantValues(), softmax_scale=0.35
)
BF16 = DTypes("bfloat16", "bfloat16", "bfloat16")


def verdict_on(case: AttentionCase, output: float) -> Verdict:
    """Return the verdict on a target that writes one number everywhere."""

    def target(out: torch.Tensor, cu_seqlens_q: torch.Tensor, **_: Any) -> None:
        out[: int(cu_seqlens_q[-1])] = output

    return value_range(Experiment(case, Target("constant", target), InterpreterBackend()))


def test_ill_conditioned_row_fails_outside_its_value_range(judge_of: JudgeOf) -> None:
    # With this seed the value range is checked only because the oracle cannot judge the rows.
    case = replace(ONES, scores=LevelScores(level=-3e7), seed=1)
    verdict = judge_of("outside_the_value_range")(Order(case)).verdict
    assert (verdict.property_name, verdict.kind) == ("value_range", "mismatch")
    assert re.match(
        r"outside the range of the values that the row sees: 8 of 16 elements wrong, worst ", verdict.message
    )
    assert judge_of("unified_attention")(Order(case)).verdict.passed


@pytest.mark.parametrize(
    ("changes", "output", "passes"),
    [
        ({}, 1.0, True),
        ({}, 1.0 + 2.0**-23, True),
        ({}, 1.0 + 2.0**-16, False),
        ({}, 0.5, False),
        ({"sinks": SinkRecipe()}, 0.5, True),
        ({"sinks": SinkRecipe()}, -0.01, False),
        ({"dtypes": BF16}, 1.0 + 2.0**-7, True),
        ({"dtypes": BF16}, 1.0 + 2.0**-6, False),
        ({"dtypes": BF16}, 1.0 - 2.0**-8, True),
        ({"dtypes": BF16}, 1.0 - 2.0**-6, False),
        ({"dtypes": DTypes(out="float8_e4m3fn")}, 1.0, True),
        ({"dtypes": DTypes(out="float8_e4m3fn")}, 1.125, False),
    ],
)
def test_tolerance_around_values_of_one(changes: dict[str, object], output: float, passes: bool) -> None:
    assert verdict_on(replace(ONES, **changes), output).passed == passes


@settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(Domain(features=Domain().features - {"qq_bias"})))
def test_values_seen_are_those_of_the_visible_keys(case: AttentionCase) -> None:
    for block in row_blocks(materialise(case)):
        hidden = ~block.visible[:, :, :, None, None]
        values = block.values.transpose(1, 2)[:, None]
        low, high = values_seen(block)
        assert low.equal(values.masked_fill(hidden, torch.inf).amin(2))
        assert high.equal(values.masked_fill(hidden, -torch.inf).amax(2))
