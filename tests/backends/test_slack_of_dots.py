"""Each backend declares how much an addition inside of a dot may lose there, and not more."""

from __future__ import annotations

import pytest

from fuzz_attn.backends.backend import Backend
from fuzz_attn.backends.cuda import CudaBackend
from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.parts import DTypes, HeadLayout, Sequence
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.oracle.reference import attend
from fuzz_attn.targets.built_in import built_in

CASE = AttentionCase((Sequence(1, 40),), heads=HeadLayout(head_size=64), dtypes=DTypes("float16", "float16", "float32"))


def largest_bound(backend: type[Backend]) -> float:
    """Return the largest bound of a built-in target on a backend."""
    target = built_in("unified")
    assert target is not None
    model = target.on_device(backend.tensor_core_slack).rounding_model
    return float(attend(materialise(CASE), model)["out"].bound.max())


@pytest.mark.parametrize("backend", [SimulatorBackend, InterpreterBackend])
def test_a_cpu_rounds_to_nearest(backend: type[Backend]) -> None:
    """numpy adds in float32: the bound is that of a model with one unit for each addition."""
    target = built_in("unified")
    assert target is not None
    plain = attend(materialise(CASE), target.rounding_model)
    assert target.rounding_model.tensor_core_slack == 1.0
    assert largest_bound(backend) == float(plain["out"].bound.max())


def test_a_gpu_truncates() -> None:
    assert largest_bound(CudaBackend) > largest_bound(SimulatorBackend)
