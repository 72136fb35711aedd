"""Cases of a device are judged on the host, with the same verdicts: here the other device is other memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import HeadLayout, Sequence
from fuzz_attn.inputs.storage import storage_bytes
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.mutation.batch_runner import CaseStream
from fuzz_attn.oracle.row_blocks import cost_of
from fuzz_attn.properties import experiment as experiments
from fuzz_attn.properties.check import all_failures, check
from fuzz_attn.properties.experiment import HOST_COST, Experiment
from fuzz_attn.properties.relations import relations_of
from fuzz_attn.targets.built_in import built_in
from fuzz_attn.targets.loading import load_target
from fuzz_attn.targets.target import Target

TARGETS = (
    "last_row_unwritten",
    "poison_leaks",
    "raises",
    "writes_an_input",
    "writes_table_padding",
    "writes_padded_rows",
    "writes_between_rows",
    "unified_attention",
)


class OnDevice(Experiment):
    """An experiment whose launches get copies of its tensors, as on a GPU."""

    def _is_on_backend(self, tensors: AttentionTensors) -> bool:
        return False


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TARGETS)
def test_a_copy_is_judged_like_the_original(name: str, case: AttentionCase, spec: Callable[[str], str]) -> None:
    target = load_target(spec(name))
    for relation in (None, *relations_of(case, Domain())):
        verdicts = [all_failures(kind(case, target, SimulatorBackend()), relation) for kind in (Experiment, OnDevice)]
        assert verdicts[0] == verdicts[1], relation


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_right_kernels_pass_on_copies(family: Family) -> None:
    target, backend = built_in(family), SimulatorBackend()
    assert target is not None
    stream = CaseStream(target.domain, 1)  # as in tests/fuzz, whose generated programs are on disk
    for drawn in (stream[number] for number in range(4)):
        if not drawn.case.strides.far and not drawn.case.pages.first_block:
            verdict = check(OnDevice(drawn.case, target, backend), drawn.relation)
            assert verdict.passed, (drawn, verdict)


def test_a_launch_leaves_the_tensors_that_were_copied(case: AttentionCase, spec: Callable[[str], str]) -> None:
    experiment = OnDevice(case, load_target(spec("writes_an_input")), SimulatorBackend())
    launched = experiment.first.launched
    assert launched is not None
    fresh, kept, left = (
        storage_bytes(each.query) for each in (experiment.fresh(), experiment.first.tensors, experiment.left)
    )
    assert kept.equal(fresh)
    assert left.equal(storage_bytes(launched.query))
    assert not left.equal(fresh)
    assert experiment.changed_inputs == ["query"]


def test_the_reference_is_of_the_inputs_as_the_launch_left_them(
    case: AttentionCase, spec: Callable[[str], str]
) -> None:
    target, backend = load_target(spec("writes_an_input")), SimulatorBackend()
    own, other = (kind(case, target, backend).reference for kind in (Experiment, OnDevice))
    assert own["out"].value.equal(other["out"].value)
    assert own["out"].bound.equal(other["out"].bound)


class Gpu(SimulatorBackend):
    """A backend that says it had another device."""

    device: Any = "cuda"


@pytest.mark.parametrize(("cost", "place"), [(HOST_COST, "cpu"), (HOST_COST + 1, "cuda")])
def test_only_large_cases_are_judged_on_the_device(
    cost: int, place: str, case: AttentionCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiments, "cost_of", lambda case: cost)
    target: Target | None = built_in("unified")
    assert target is not None
    assert Experiment(case, target, Gpu()).place == place
    assert Experiment(case, target, SimulatorBackend()).place == "cpu"


def test_the_cost_counts_scores_of_visible_keys() -> None:
    heads = HeadLayout(num_kv_heads=2, num_queries_per_kv=3, head_size=60)
    sequences = (Sequence(2, 8), Sequence(1, 99))
    assert cost_of(AttentionCase(sequences, heads=heads)) == (2 * 10 + 100) * 6 * 100
    assert cost_of(AttentionCase(sequences, heads=heads, window=5)) == (2 * 7 + 6) * 6 * 100
