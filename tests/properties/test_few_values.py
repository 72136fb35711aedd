"""Few values: a key lost in a long row fails under every way to normalise, and right code is not suspected for long."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace as replaced
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, PageLayout, Sequence
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.inputs.transforms import only_values
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.row_blocks import row_blocks
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.few_values import few_values
from fuzz_attn.properties.launch_properties import oracle
from fuzz_attn.targets.target import Target

TYPES: tuple[DTypeName, ...] = ("float32", "float16", "bfloat16")
NUM_KEYS = 5001
PAGE = 16
LOST = {"first": 0, "last": -1, "page edge": 3 * PAGE, "middle": NUM_KEYS // 2, "random": 4711}
AVERAGES = ("last", "first", "first in float32", "segments")


def _samples() -> ModuleType:
    file = Path(__file__).parents[1] / "sample_targets" / "torch_normalisation.py"
    spec = spec_from_file_location("torch_normalisation", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SAMPLES = _samples()


def _upwards(scores: torch.Tensor, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return averages whose products are larger than the exact ones by half of what the cast of P may add."""
    raised: torch.Tensor = SAMPLES.AVERAGES["last"](scores, values + values.abs() * (torch.finfo(dtype).eps / 4), dtype)
    return raised


AVERAGE_OF = {**SAMPLES.AVERAGES, "upwards": _upwards}


def case_of(dtype: DTypeName, num_keys: int = NUM_KEYS, head_size: int = 32) -> AttentionCase:
    """Return a case of one long sequence with equal heads and marked keys."""
    return AttentionCase(
        sequences=(Sequence(2, num_keys - 2),),
        heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=1, head_size=head_size),
        dtypes=DTypes(dtype, dtype, dtype),
        pages=PageLayout(block_size=PAGE, permuted=True),
        equal_heads=True,
        key_marks=True,
        seed=4,
    )


def experiment_of(average: str, lost: int | None, case: AttentionCase) -> Experiment:
    """Return an experiment with a sample target, which declares nothing."""
    return Experiment(case, Target("sample", SAMPLES.target(AVERAGE_OF[average], lost)), InterpreterBackend())


PLANTS = [(place, "last") for place in LOST] + [("random", average) for average in AVERAGES[1:]]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("place", "average"), PLANTS)
def test_a_lost_key_fails_however_the_target_normalises(place: str, dtype: DTypeName, average: str) -> None:
    verdict = check(experiment_of(average, LOST[place], case_of(dtype)))
    assert verdict.kind == "mismatch"
    assert verdict.property_name in ("oracle", "few_values")


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("dtype", TYPES)
def test_right_code_passes(dtype: DTypeName, average: str) -> None:
    experiment = experiment_of(average, None, case_of(dtype))
    assert oracle(experiment).passed
    assert few_values(experiment).passed


def test_the_oracle_alone_misses_the_key_that_few_values_show() -> None:
    experiment = experiment_of("last", LOST["random"], case_of("bfloat16"))
    assert oracle(experiment).passed
    verdict = few_values(experiment)
    assert (verdict.property_name, verdict.kind) == ("few_values", "mismatch")
    assert re.match(r"a launch with all values 0 but those of \d+ keys of sequence 0: ", verdict.message)


@pytest.mark.parametrize("lost", [None, LOST["random"]])
def test_only_a_suspicion_costs_a_launch(lost: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = _counted(monkeypatch)
    check(experiment_of("last", lost, case_of("bfloat16")))
    assert (len(launches) > 1) == (lost is not None)


def test_a_target_that_is_exact_is_not_launched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = _counted(monkeypatch)
    experiment = experiment_of("last", LOST["random"], case_of("bfloat16"))
    experiment.target = replaced(experiment.target, rounding=RoundingModel(normalises_last=True))
    assert few_values(experiment).passed  # the oracle itself finds it
    assert not oracle(experiment).passed
    assert len(launches) == 1


@pytest.mark.parametrize(
    ("dtype", "model"),
    [
        ("float32", RoundingModel(normalises_last=True, input_precision="tf32")),
        ("bfloat16", RoundingModel(normalises_last=True, scores="query")),
    ],
    ids=["operands that are cut", "rounded scores"],
)
def test_a_target_that_divides_last_but_rounds_much_is_not_exact(dtype: DTypeName, model: RoundingModel) -> None:
    experiment = experiment_of("last", LOST["random"], case_of(dtype, num_keys=30_001))
    experiment.target = replaced(experiment.target, rounding=model)
    assert oracle(experiment).passed
    assert not few_values(experiment).passed


@pytest.mark.parametrize("place", LOST)
@pytest.mark.parametrize("head_size", [1, 2, 3])
def test_launches_narrow_down_which_of_many_keys_in_a_column_is_lost(head_size: int, place: str) -> None:
    experiment = experiment_of("last", LOST[place], case_of("bfloat16", head_size=head_size))
    assert oracle(experiment).passed
    assert not few_values(experiment).passed


def test_launches_of_one_suspicion_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = _counted(monkeypatch)
    monkeypatch.setattr("fuzz_attn.properties.few_values.LAUNCHES", 3)
    assert few_values(experiment_of("last", LOST["middle"], case_of("bfloat16", head_size=1))).passed
    assert len(launches) == 1 + 3


@pytest.mark.parametrize("lost", [None, LOST["first"], LOST["last"]])
def test_a_target_that_rounds_much_is_launched_once_more_with_the_first_and_the_last_keys(
    lost: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that rounds each product away from 0 looks as if it lost keys in all columns."""
    launches = _counted(monkeypatch)
    experiment = experiment_of("upwards", lost, case_of("bfloat16", num_keys=20_000, head_size=16))
    assert oracle(experiment).passed
    assert few_values(experiment).passed == (lost is None)
    assert len(launches) == 2


@pytest.mark.parametrize("packed", [False, True])
def test_only_the_chosen_values_are_left(packed: bool) -> None:
    case = case_of("float16", num_keys=100, head_size=8)
    if packed:
        case = replace(case, family="context")
    positions = torch.tensor([0, 5, 7, 50, 97, 98, 99])
    before, tensors = materialise(case), only_values(materialise(case), 0, positions, 1, slice(3, 4))
    (old,), (new,) = row_blocks(before), row_blocks(tensors)
    assert old.keys.equal(new.keys)
    expected = torch.zeros_like(new.values)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    expected[0, :, positions, torch.arange(7)] = signs * old.values[0, 1, positions, 3].abs()
    assert new.values.equal(expected)
    assert bool((expected != 0.0).any())


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    launches: list[object] = []
    launch: Callable[..., object] = Experiment.launch_tensors

    def counted(self: Experiment, tensors: object, *rest: object) -> object:
        launches.append(tensors)
        return launch(self, tensors, *rest)

    monkeypatch.setattr(Experiment, "launch_tensors", counted)
    return launches
