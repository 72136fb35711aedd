"""Far axes: tensors that span many gigabytes of addresses, of which only the elements have memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import torch

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.aspects import FEATURES, all_features_of
from fuzz_attn.case.attention_case import AttentionCase, far_length, replace
from fuzz_attn.case.description import describe
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.case.parts import FAR_AXES, FarAxis, HeadLayout, PageLayout, Sequence, Strides
from fuzz_attn.case.recipes import LogSumExp, QQBiasRecipe
from fuzz_attn.engine.failures.reduction import simplify
from fuzz_attn.engine.orders import Order
from fuzz_attn.errors import CaseError
from fuzz_attn.inputs.storage import elements_in, far_axis
from fuzz_attn.inputs.tensors import AttentionTensors, digest_of, materialise
from fuzz_attn.inputs.transforms import arranged
from fuzz_attn.mutation.batch_runner import RestorableTensors
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.relations import relations_of
from fuzz_attn.targets.built_in import built_in
from fuzz_attn.targets.target import Called, Target

TENSORS: dict[FarAxis, tuple[str, ...]] = {
    "q_token": ("query",),
    "q_head": ("query",),
    "out_token": ("output",),
    "out_head": ("output",),
    "block_table": ("block_table",),
    "new_token": ("new_keys", "new_values"),
    "new_head": ("new_keys", "new_values"),
    "cache_slot": ("key_cache", "value_cache"),
    "cache_head": ("key_cache", "value_cache"),
    "cache_dim": ("key_cache", "value_cache"),
    "bias_row": ("qq_bias",),
    "bias_column": ("qq_bias",),
    "lse_token": ("lse",),
    "lse_head": ("lse",),
}
"""The tensors that an axis belongs to."""
ONE_OF_EACH: tuple[FarAxis, ...] = ("q_token", "out_head", "block_table", "new_token", "cache_slot")


OF_TENSOR: dict[str, Family] = {"bias": "unified", "lse": "varlen"}
"""The families that have a tensor; the others have the usual ones."""


def case_of(*names: FarAxis, family: Family | None = None) -> AttentionCase:
    """Return a case with these axes far; without any it is near."""
    tensor = next(iter(names), "").partition("_")[0]
    family = family or OF_TENSOR.get(tensor, "context")
    lengths = (1, 1, 1, 1) if family in ("paged", "mla_decode") else (3, 2, 1, 1)
    new: dict[str, LogSumExp] = {"varlen": LogSumExp(order="heads"), "mla_decode": LogSumExp()}
    return AttentionCase(
        sequences=tuple(Sequence(length, 5 * length) for length in lengths),
        family=family,
        heads=HeadLayout(1, 4, 16, 8) if family == "mla_decode" else HeadLayout(4, head_size=16),
        padded_tokens=int(family != "mla_decode"),
        qq_bias=QQBiasRecipe() if family == "unified" else None,
        lse=new.get(family),
        strides=Strides(q_head=1, out_head=2, new_head=3, key_chunk=4 * (family not in ("unified", *new)), far=names),
        seed=5,
    )


def named(tensors: AttentionTensors, name: str) -> torch.Tensor:
    """Return a tensor by its name, which may be that of the second output."""
    tensor: torch.Tensor = tensors.outputs["lse"].tensor if name == "lse" else getattr(tensors, name)
    return tensor


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_every_far_axis_is_tested() -> None:
    assert set(TENSORS) == set(FAR_AXES) == set(get_args(FarAxis))


@pytest.mark.parametrize("name", TENSORS)
def test_far_axes_keep_the_elements_and_cost_no_memory(name: FarAxis) -> None:
    family = case_of(name).family
    near, before = materialise(case_of(family=family)), resident_bytes()
    tensors = materialise(case_of(name))
    tensors_of = TENSORS[name][: 1 if (name, family) == ("cache_slot", "context") else None]
    for tensor in tensors_of:
        one, far = named(near, tensor), named(tensors, tensor)
        assert torch.equal(one.nan_to_num(), far.nan_to_num())
        assert far.data_ptr() % 16 == one.data_ptr() % 16
        axis = far_axis(far)
        assert axis is not None
        assert far_axis(one) is None
        others = [far.stride(index) - one.stride(index) for index in range(far.dim()) if index != axis]
        assert not any(others)
        assert (far.stride(axis) - one.stride(axis)) % 16 == 0
        live = min(far.shape[axis], far_length(case_of(name), name))
        assert 2**31 <= max(live // 2, 2) * far.stride(axis) < 2**31 + 2**13
        memory = tensors.memory_of(far)
        assert memory.shape[0] == far.shape[axis]
        poison = near.memory_of(one)[:4096]
        assert torch.equal(memory[:, :4096], poison.expand(len(memory), -1))
        assert torch.equal(memory[:, -4096:], poison.expand(len(memory), -1))
        assert torch.equal(elements_in(memory.clone(), far).nan_to_num(), far.nan_to_num())
    assert resident_bytes() - before < 2**24


@pytest.mark.parametrize("name", TENSORS)
def test_digest_depends_on_far_axes(name: FarAxis) -> None:
    digests = [digest_of(materialise(case)) for case in (case_of(family=case_of(name).family), case_of(name))]
    assert digests[0] != digests[1] == digest_of(materialise(case_of(name)))


@pytest.mark.parametrize("name", TENSORS)
def test_description_features_and_json_hold_far_axes(name: FarAxis) -> None:
    case = case_of(name)
    assert f"{FAR_AXES[name]} spread over 2^31 elements" in dict(describe(case))["memory"]
    assert "far_axes" in all_features_of(case)
    assert msgspec.json.decode(msgspec.json.encode(case), type=AttentionCase) == case
    assert FEATURES["far_axes"].without(case) == case_of(family=case.family)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strides": Strides(far=("q_token", "q_head"))}, "one axis of each tensor, not both 'q_token' and 'q_head'"),
        ({"strides": Strides(far=("cache_dim",)), "family": "unified"}, "'cache_dim' for family='unified'"),
        ({"strides": Strides(far=("cache_head",), cache="kv_first")}, "memory of their own and pages.first_block=0"),
        ({"strides": Strides(far=("cache_slot",)), "pages": PageLayout(first_block=9)}, "pages.first_block=0"),
        ({"strides": Strides(far=("q_head",)), "sequences": (Sequence(16385),)}, "elements, more than 4194304"),
        (
            {
                "strides": Strides(far=("bias_row",)),
                "family": "unified",
                "qq_bias": QQBiasRecipe("zero", order="one_row"),
            },
            "qq_bias.order='one_row' must be 'rows' or 'columns'",
        ),
    ],
)
def test_axes_that_cannot_be_far_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CaseError, match=re.escape(message)):
        msgspec.structs.replace(case_of(), **changes)


def test_axes_of_one_index_stay_near() -> None:
    case = replace(case_of("q_token", "cache_head"), sequences=(Sequence(1),), padded_tokens=0, heads=HeadLayout())
    tensors = materialise(case)
    assert [far_axis(each) for each in (tensors.query, tensors.key_cache, tensors.value_cache)] == [None] * 3


def test_a_failing_case_shrinks_to_three_rows() -> None:
    many = replace(case_of("q_token", family="unified"), sequences=(Sequence(30, 5), Sequence(11)))

    def overflows(order: Order) -> bool:
        query = materialise(order.case).query
        return bool(query.stride(0) < 2**31 <= query.stride(0) * (order.case.num_tokens - 1))

    assert many.num_tokens == 41
    assert overflows(Order(many))
    simplest = simplify(Order(many), overflows, Domain()).case
    assert simplest.sequences == (Sequence(3),)
    assert simplest.strides == Strides(far=("q_token",))


def test_prepared_tensors_with_far_axes_are_restored() -> None:
    case = case_of(*ONE_OF_EACH)
    tensors = materialise(case)
    before, prepared = digest_of(tensors), RestorableTensors(tensors)
    for _, tensor in tensors.inputs():
        tensors.memory_of(tensor).fill_(7)
    assert digest_of(tensors) != before
    assert digest_of(prepared.restored()) == before


@pytest.mark.parametrize("order", [[3, 1], [None, 2], []])
@pytest.mark.parametrize("names", [ONE_OF_EACH, ("q_head", "out_token", "new_head", "cache_head")])
def test_arranged_batches_keep_far_axes(order: list[int | None], names: tuple[FarAxis, ...]) -> None:
    near, far = (arranged(materialise(case), order)[0] for case in (case_of(), case_of(*names)))
    before = resident_bytes()
    for name in {TENSORS[axis][0] for axis in names}:
        one, other = getattr(near, name), getattr(far, name)
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
        assert far.memory_of(other).numel() < 2**19
        assert len(other) < 2 or far_axis(other) is not None
    assert resident_bytes() - before < 2**24


def written(tensors: AttentionTensors, name: FarAxis, place: int) -> None:
    tensors.memory_of(named(tensors, TENSORS[name][0]))[-1, place] ^= 1


PLACES = (0, 4160, -1)


@pytest.mark.parametrize(("name", "place"), [(name, PLACES[at % len(PLACES)]) for at, name in enumerate(TENSORS)])
def test_changed_memory_around_far_elements_is_found(
    name: FarAxis, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(name)
    target = built_in(case.family)
    assert target is not None
    changed: list[AttentionTensors] = []

    def runs(target: Target, tensors: AttentionTensors) -> Called:
        found = run(target, tensors)
        written(tensors, name, place)
        changed.append(tensors)
        return found

    run = Target.run
    monkeypatch.setattr(Target, "run", runs)
    verdict = check(Experiment(case, target, SimulatorBackend()))
    assert changed
    expected = "written_outside" if name.startswith(("out", "lse")) else "input_changed"
    assert verdict.kind == expected


FAMILY_AXES = [
    (family, name)
    for family in ("unified", "paged", "context", "chunked")
    for name in TENSORS
    if (family == "unified" or not name.startswith("bias"))
    and not name.startswith("lse")
    and (family != "unified" or name != "cache_dim")
    and (family in ("context", "chunked") or not name.startswith("new"))
] + [("mla_decode", "cache_slot"), ("mla_decode", "lse_head"), ("varlen", "lse_head"), ("varlen", "lse_token")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("at", "family", "name"), [(at, *pair) for at, pair in enumerate(FAMILY_AXES)])
def test_our_kernels_are_right_on_far_axes(at: int, family: Family, name: FarAxis) -> None:
    """With a third of the relations, by turns."""
    target, before = built_in(family), resident_bytes()
    assert target is not None
    experiment = Experiment(case_of(name, family=family), target, SimulatorBackend())
    for relation in (None, *[*relations_of(experiment.case, target.domain)][at % 3 :: 3]):
        assert check(experiment, relation).passed, relation
    assert resident_bytes() - before < 2**26


@pytest.mark.parametrize("path", ["2d", "3d"])
@pytest.mark.parametrize("names", [("q_token", "out_token", "cache_slot"), ("q_head", "out_head", "cache_head")])
def test_both_paths_are_right_on_far_axes(path: Any, names: tuple[FarAxis, ...]) -> None:
    case = case_of(*names, family="unified")
    launch = msgspec.structs.replace(case.launch, path=path, num_segments=3 * (path == "3d"))
    target = built_in("unified")
    assert target is not None
    assert check(Experiment(replace(case, launch=launch), target, SimulatorBackend())).passed
