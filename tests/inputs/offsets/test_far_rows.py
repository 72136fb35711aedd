"""Far rows: tensors that span many gigabytes of addresses, of which only the rows have memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.description import describe
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.case.features import all_features_of
from fuzz_attn.case.parts import FAR_STRIDES, HeadLayout, Sequence, Strides
from fuzz_attn.case.traits import without_feature
from fuzz_attn.engine.failures.simplification import simplify
from fuzz_attn.engine.messages import Order
from fuzz_attn.errors import CaseError
from fuzz_attn.inputs.far_rows import has_far_rows
from fuzz_attn.inputs.tensors import AttentionTensors, digest_of, materialise
from fuzz_attn.inputs.transforms import arranged
from fuzz_attn.mutation.prepared_case import RestorableTensors
from fuzz_attn.properties.check import check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.relations import relations_of
from fuzz_attn.targets.built_in import built_in
from fuzz_attn.targets.target import Target

FAR = 2**31 // 3 + 11
"""Elements after each of at least four rows, so that the last one lies beyond 2^31 elements."""
TENSORS = {
    "q_token": "query",
    "out_token": "output",
    "block_table": "block_table",
    "new_token": "new_keys",
    "new_value_token": "new_values",
}


def case_of(*names: str, gap: int = FAR, family: Family = "context") -> AttentionCase:
    """Return a case with these paddings; without any its rows are near."""
    strides = Strides(q_head=1, out_head=2, new_head=3)
    lengths = (1, 1, 1, 1) if family == "paged" else (2, 1, 1, 1)
    return AttentionCase(
        sequences=tuple(Sequence(length, 5 * length) for length in lengths),
        family=family,
        heads=HeadLayout(num_kv_heads=2, head_size=16),
        padded_tokens=1,
        strides=msgspec.structs.replace(strides, **dict.fromkeys(names, gap)),
        seed=5,
    )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_every_far_padding_is_tested() -> None:
    assert set(TENSORS) == set(FAR_STRIDES)


@pytest.mark.parametrize("name", TENSORS)
def test_far_rows_keep_the_elements_and_cost_no_memory(name: str) -> None:
    near, before = materialise(case_of()), resident_bytes()
    tensors = materialise(case_of(name))
    near_tensor, far = (getattr(each, TENSORS[name]) for each in (near, tensors))
    assert torch.equal(near_tensor.nan_to_num(), far.nan_to_num())
    assert far.stride() == (near_tensor.stride(0) + FAR, *near_tensor.stride()[1:])
    assert far.data_ptr() % 16 == near_tensor.data_ptr() % 16
    assert 3 * far.stride(0) >= 2**31
    memory = tensors.memory_of(far)
    assert memory.shape == (len(far), near_tensor.stride(0) * far.element_size() + 2 * 4096)
    guards = torch.cat([memory[:, :4096], memory[:, -4096:]])
    assert torch.equal(guards, near.memory_of(near_tensor)[:4096].repeat(2 * len(far), 1))
    assert resident_bytes() - before < 2**24


@pytest.mark.parametrize("name", TENSORS)
def test_digest_depends_on_the_gap(name: str) -> None:
    digests = [digest_of(materialise(case_of(name, gap=gap))) for gap in (0, FAR, FAR + 1, FAR)]
    assert len(set(digests)) == 3
    assert digests[1] == digests[3]


@pytest.mark.parametrize("name", TENSORS)
def test_description_features_and_json_hold_far_rows(name: str) -> None:
    case = case_of(name)
    assert f"gap of {FAR} without memory after" in dict(describe(case))["memory"]
    assert "far_rows" in all_features_of(case)
    assert msgspec.json.decode(msgspec.json.encode(case), type=AttentionCase) == case
    assert without_feature(case, "far_rows") == case_of()


@pytest.mark.parametrize("name", TENSORS)
def test_too_many_rows_are_refused(name: str) -> None:
    sequences = tuple(Sequence(2) for _ in range(20))
    with pytest.raises(CaseError, match=rf"strides.{name}={FAR} would stretch \d+ rows over more than 2\*\*33 elem"):
        msgspec.structs.replace(case_of(name), sequences=sequences)


@pytest.mark.parametrize("name", TENSORS)
def test_other_sequences_keep_rows_far_apart(name: str) -> None:
    case = case_of(name)
    for sequences in ((Sequence(1),) * 3, (Sequence(2),) * 12, (Sequence(1, 9),) * 4):
        rows = len(sequences) if name == "block_table" else sum(sequence.query_len for sequence in sequences)
        before = 3 if name == "block_table" else 4
        reach = getattr(replace(case, sequences=sequences).strides, name) * (rows - 1)
        assert before * FAR <= reach <= before * FAR + 16 * rows
    assert replace(case, sequences=(Sequence(1),)).strides == case.strides


def test_a_failing_case_shrinks_to_three_rows() -> None:
    many = replace(case_of("q_token", family="unified"), sequences=(Sequence(30, 5), Sequence(11)))

    def overflows(order: Order) -> bool:
        gap = order.case.strides.q_token
        return gap < 2**31 <= gap * (order.case.num_tokens - 1)

    assert many.num_tokens == 41
    assert overflows(Order(many))
    simplest = simplify(Order(many), overflows, Domain()).case
    assert simplest.sequences == (Sequence(3),)
    assert simplest.strides == Strides(q_token=simplest.strides.q_token)


def test_prepared_tensors_with_far_rows_are_restored() -> None:
    case = case_of(*TENSORS, gap=FAR // 2)
    tensors = materialise(case)
    before, prepared = digest_of(tensors), RestorableTensors(tensors)
    for _, tensor in tensors.inputs():
        tensors.memory_of(tensor).fill_(7)
    assert digest_of(tensors) != before
    assert digest_of(prepared.restored()) == before


@pytest.mark.parametrize("order", [[3, 1], [None, 2], []])
def test_arranged_batches_keep_far_rows(order: list[int | None]) -> None:
    near, far = (arranged(materialise(case), order)[0] for case in (case_of(), case_of(*TENSORS, gap=FAR // 2)))
    before = resident_bytes()
    for name in TENSORS.values():
        one, other = getattr(near, name), getattr(far, name)
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
        assert far.memory_of(other).numel() < 2**17
        assert len(other) < 2 or has_far_rows(other)
    assert resident_bytes() - before < 2**24


def written(tensors: AttentionTensors, name: str, place: int) -> None:
    tensors.memory_of(getattr(tensors, name))[-1, place] ^= 1


@pytest.mark.parametrize("place", [0, 5000, -1])
@pytest.mark.parametrize("name", TENSORS)
def test_changed_memory_around_far_rows_is_found(name: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = built_in("context")
    assert target is not None
    changed: list[AttentionTensors] = []

    def runs(target: Target, tensors: AttentionTensors) -> tuple[str, ...]:
        found = run(target, tensors)
        written(tensors, TENSORS[name], place)
        changed.append(tensors)
        return found

    run = Target.run
    monkeypatch.setattr(Target, "run", runs)
    verdict = check(Experiment(case_of(name), target, InterpreterBackend()))
    assert changed
    expected = "written_outside" if name == "out_token" else "input_changed"
    assert verdict.kind == expected


@pytest.mark.parametrize(
    ("family", "name"),
    [
        (family, name)
        for family in ("unified", "paged", "context", "chunked")
        for name in (("q_token", "out_token", "block_table") if family in ("unified", "paged") else FAR_STRIDES)
    ],
)
def test_our_kernels_are_right_on_far_rows(family: Family, name: str) -> None:
    target, before = built_in(family), resident_bytes()
    assert target is not None
    experiment = Experiment(case_of(name, family=family), target, SimulatorBackend())
    for relation in (None, *relations_of(experiment.case, target.domain)):
        assert check(experiment, relation).passed, relation
    assert resident_bytes() - before < 2**26


@pytest.mark.parametrize("path", ["2d", "3d"])
def test_both_paths_are_right_on_far_rows(path: Any) -> None:
    case = case_of("q_token", "out_token", family="unified")
    launch = msgspec.structs.replace(case.launch, path=path, num_segments=3 * (path == "3d"))
    target = built_in("unified")
    assert target is not None
    assert check(Experiment(replace(case, launch=launch), target, SimulatorBackend())).passed
