"""Whether torch code divides last is settled by exact cases, for each type, and only where it is certain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.calibration.normalisation import NOTE, NormalisationCalibrator
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypes, HeadLayout, Sequence
from fuzz_attn.engine.case_judge import CaseJudge
from fuzz_attn.engine.messages import Order
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.targets.loading import load_target

FILE = Path(__file__).parents[1] / "sample_targets" / "torch_normalisation.py"
TYPES = ("float32", "float16", "bfloat16")
LONGER = 9000


def _settled(name: str, dtype: Any, num_keys: int, query_len: int = 1) -> bool:
    case = AttentionCase(
        (Sequence(query_len, num_keys - query_len),), heads=HeadLayout(2, 2, 64), dtypes=DTypes(dtype, dtype, dtype)
    )
    experiment = Experiment(case, load_target(f"{FILE}:{name}", "unified", None), SimulatorBackend())
    return NormalisationCalibrator().target_for(experiment).rounding_model.normalises_last


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num_keys", "query_len"), [(20, 1), (20, 3), (LONGER, 1)])
def test_code_that_divides_last_is_recognised(dtype: str, num_keys: int, query_len: int) -> None:
    assert _settled("divides_last", dtype, num_keys, query_len)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["divides_first", "divides_first_in_float32"])
def test_nothing_is_concluded_of_code_that_divides_first(name: str, dtype: str) -> None:
    assert not _settled(name, dtype, 20)
    assert not _settled(name, dtype, LONGER)


@pytest.mark.parametrize("dtype", TYPES)
def test_merges_of_long_sequences_are_not_taken_for_what_short_ones_do(dtype: str) -> None:
    assert _settled("merges_long", dtype, 20)
    assert not _settled("merges_long", dtype, 1100)
    assert not _settled("merges_long", dtype, LONGER)


@pytest.mark.parametrize("num_keys", [520, 700])
def test_what_shorter_sequences_do_is_not_taken_for_longer_ones(num_keys: int) -> None:
    """Segments are merged from 1,001 keys on, and all lengths up to 1,024 are settled together."""
    assert not _settled("merges_long", "bfloat16", num_keys)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_lost_key_of_long_sequences_does_not_hide_itself(dtype: str) -> None:
    assert _settled("loses_a_key", dtype, LONGER)


def test_what_was_settled_is_told_once_and_a_binding_overrules_it() -> None:
    case = AttentionCase((Sequence(1, 20),), heads=HeadLayout(2, 2, 64))
    target = load_target(f"{FILE}:divides_last", "unified", None)
    judge = CaseJudge(target, SimulatorBackend())
    first, second = judge.judge(Order(case)), judge.judge(Order(case))
    assert (first.verdict.passed, first.notes, second.notes) == (True, (NOTE,), ())
    stated = replace(target, binding={"rounding": {"normalises_last": False}})
    assert not CaseJudge(stated, SimulatorBackend()).judge(Order(case)).notes


def test_a_target_with_kernels_is_not_asked() -> None:
    target = replace(load_target("unified"), rounding=None)
    backend = SimulatorBackend()
    experiment = Experiment(AttentionCase((Sequence(1, 20),)), target, backend)
    assert not experiment.first.error
    assert NormalisationCalibrator().target_for(experiment) is target
