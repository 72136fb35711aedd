"""Merges and cache writes in the forms of published launchers: found by their signatures, calibrated, and judged."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import pytest

from fuzz_attn.binding.binding import binding_of
from fuzz_attn.errors import BindingError, TargetError
from fuzz_attn.operations.merge_states.state_case import StateCase
from fuzz_attn.operations.merge_states.state_experiment import materialise, merge
from fuzz_attn.operations.registry import load_target, operation_of
from tests.operations.edited import backend, drawn

MERGES: Final = """
import torch

def merged(outputs, lses, base):
    weights = base ** (lses.double() - lses.double().amax(0))
    total = weights.sum(0)
    out = (weights[..., None] * outputs.double()).sum(0) / total[..., None]
    unit = torch.tensor(base, dtype=torch.float64).log()
    return out.to(outputs.dtype), (lses.double().amax(0) + total.log() / unit).float()

def heads_first(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse=None):
    out, lse = merged(torch.stack([prefix_output, suffix_output]), torch.stack([prefix_lse.T, suffix_lse.T]), E)
    output.copy_(out)
    output_lse.copy_(lse.T)

def returned(v_a, s_a, v_b, s_b):
    return merged(torch.stack([v_a, v_b]), torch.stack([s_a, s_b]), 2.0)

def of_tokens(v, s):
    return merged(v.transpose(0, 1), s.transpose(0, 1), 2.0)

def packed(v, s, indptr):
    rows = [slice(*pair) for pair in zip(indptr[:-1].tolist(), indptr[1:].tolist())]
    found = [merged(v[row], s[row], 2.0) for row in rows]
    return torch.stack([out for out, _ in found]), torch.stack([lse for _, lse in found])

def in_place(v, s, v_other, s_other):
    out, lse = merged(torch.stack([v, v_other]), torch.stack([s, s_other]), 2.0)
    v.copy_(out)
    s.copy_(lse)
""".replace(" E)", " 2.718281828459045)")
"""Each merge as published ones take and give it, computed in float64."""

WRITES: Final = """
import torch

def written(rows, cache, slots, size, place):
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            cache[place(slot // size, slot % size)] = rows[row].to(cache.dtype)

def split(key, value, key_cache, value_cache, slots):
    size, x = key_cache.shape[3], key_cache.shape[4]
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            page, place = divmod(slot, size)
            key_cache[page, :, :, place] = key[row].reshape(key.shape[1], -1, x).to(key_cache.dtype)
            value_cache[page, :, :, place] = value[row].to(value_cache.dtype)

def heads_first(k, v, k_cache, v_cache, slots):
    size = k_cache.shape[2]
    for rows, cache in ((k, k_cache), (v, v_cache)):
        written(rows, cache, slots, size, lambda page, place: (page, slice(None), place))

def joined(keys, values, kv_cache, slots):
    size = kv_cache.shape[1]
    half = keys.shape[2]
    written(keys, kv_cache[..., :half], slots, size, lambda page, place: (page, place))
    written(values, kv_cache[..., half:], slots, size, lambda page, place: (page, place))

def one(k, k_cache, slots):
    written(k, k_cache, slots, 1, lambda page, place: page)

def of_sequences(k_states, v_states, k_caches, v_caches, q_start_loc, q_seq_length, kv_seq_length, block_offsets):
    assert q_seq_length.tolist() == [1] * len(kv_seq_length)
    for row, length in enumerate(kv_seq_length.tolist()):
        page = block_offsets[row, (length - 1) // k_caches.shape[1]]
        for rows, cache in ((k_states, k_caches), (v_states, v_caches)):
            cache[page, (length - 1) % cache.shape[1]] = rows[q_start_loc[row]].to(cache.dtype)
"""


def bound(source: str, name: str, folder: Path, stated: dict[str, Any] | None = None) -> tuple[Any, tuple[str, ...]]:
    """Return the calibrated target of a function, and what was learned."""
    file = folder / "forms.py"
    file.write_text(source)
    target = load_target(f"{file}:{name}", None, binding_of(stated))
    return operation_of(target.domain).calibrated(target, backend())


def failures(target: Any, count: int = 24) -> list[Any]:
    """Return the cases of a round that a target fails."""
    operation = operation_of(target.domain)
    failed = []
    for case, relation in drawn(target.domain, 1, count):
        assert not operation.unpromised(case, target.domain)
        found = operation.failures(operation.experiment(case, target, backend()), relation)
        failed += [case for verdict in found if not verdict.passed]
    return failed


IN_PLACE: Final = {"roles": {"v": "first_to_out", "s": "first_to_lse"}}


@pytest.mark.parametrize(
    ("name", "stated", "base", "order"),
    [
        ("heads_first", None, "e", "heads"),
        ("returned", None, "2", "tokens"),
        ("of_tokens", None, "2", "tokens"),
        ("packed", None, "2", "tokens"),
        ("in_place", IN_PLACE, "2", "tokens"),
    ],
)
def test_a_merge_is_found_calibrated_and_right(
    name: str, stated: dict[str, Any] | None, base: str, order: str, tmp_path: Path
) -> None:
    target, notes = bound(MERGES, name, tmp_path, stated)
    assert (target.domain.lse.base, target.domain.lse.order) == (base, order)
    assert [note for note in notes if "calibrated" in note]
    assert "empty_rows" not in target.domain.features
    assert target.domain.empty_outputs == ("zero",)
    assert not failures(target)
    again = load_target(target.name, None, target.match.binding)
    assert operation_of(again.domain).calibrated(again, backend()) == (again, ())
    assert again.domain == target.domain


@pytest.mark.parametrize("name", ["heads_first", "returned", "of_tokens", "packed", "in_place"])
def test_a_wrong_merge_is_found(name: str, tmp_path: Path) -> None:
    wrong = MERGES.replace("total = weights.sum(0)", "total = weights.sum(0) + (outputs.shape[-2] > 2)")
    target, _ = bound(wrong, name, tmp_path, IN_PLACE if name == "in_place" else None)
    failed = failures(target)
    assert failed
    assert all(case.num_heads > 2 for case in failed)


def test_a_merge_that_is_never_right_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BindingError, match="is right on an easy case where nothing that was tried"):
        bound(MERGES.replace("total = weights.sum(0)", "total = 1.0"), "returned", tmp_path)


def test_a_feature_that_is_refused_is_not_drawn(tmp_path: Path) -> None:
    head = "def returned(v_a, s_a, v_b, s_b):"
    dense = MERGES.replace(head, f"{head}\n    assert v_a.is_contiguous()")
    target, notes = bound(dense, "returned", tmp_path)
    assert "strides" not in target.domain.features
    assert "The target refuses an easy case with strides, which is not drawn." in notes


def test_logarithms_of_another_base_merge_to_the_same() -> None:
    """An LSE of base 2 weighs as the natural one that is log(2) times as large."""
    natural = materialise(StateCase(3, 4, 2, lse_spread=5.0))
    binary = materialise(StateCase(3, 4, 2, lse_spread=5.0, base="2"))
    scaled = binary.partial_lses.double() * 0.6931471805599453
    weights = (scaled - scaled.amax(0)).exp()
    shares = weights / weights.sum(0)
    found = merge(binary)
    assert found["out"].value.allclose((shares[..., None] * binary.partial_outputs.double()).sum(0), rtol=1e-12)
    assert found["lse"].value.allclose(scaled.logsumexp(0) / 0.6931471805599453, rtol=1e-12)
    assert not found["lse"].value.allclose(merge(natural)["lse"].value)


@pytest.mark.parametrize(
    ("name", "layout", "stated"),
    [
        ("split", "split", None),
        ("heads_first", "heads_first", None),
        ("joined", "rows", None),
        ("one", "slots", None),
        ("of_sequences", "rows", None),
    ],
)
def test_a_write_is_found_calibrated_and_right(
    name: str, layout: str, stated: dict[str, Any] | None, tmp_path: Path
) -> None:
    target, notes = bound(WRITES, name, tmp_path, stated)
    assert target.match.binding.layout == layout
    assert [note for note in notes if "calibrated" in note]
    assert ("skipped" in target.domain.features) is (name != "of_sequences")
    assert not failures(target)


CACHES: Final = {
    "split": "value_cache",
    "heads_first": "v_cache",
    "joined": "kv_cache",
    "one": "k_cache",
    "of_sequences": "v_caches",
}


@pytest.mark.parametrize("name", CACHES)
def test_a_write_to_another_slot_is_found(name: str, tmp_path: Path) -> None:
    target, _ = bound(WRITES, name, tmp_path)

    def stray(**given: Any) -> None:
        target.call(**given)
        given[CACHES[name]].view(-1)[0] = 1.0

    assert failures(dataclasses.replace(target, call=stray))


@pytest.mark.parametrize("name", ["heads_first", "joined"])
def test_memory_around_a_copy_must_not_change(name: str, tmp_path: Path) -> None:
    target, _ = bound(WRITES, name, tmp_path)
    operation: Any = operation_of(target.domain)
    case = operation.plain_case(target.domain)

    def stray(**given: Any) -> None:
        target.call(**given)
        cache = given[CACHES[name]]
        cache.as_strided((1,), (1,), cache.storage_offset() - 1).fill_(1.0)

    wrong = dataclasses.replace(target, call=stray)
    assert [each for each in operation.failures(operation.experiment(case, wrong, backend()), None) if not each.passed]


def test_a_signature_of_no_operation_is_refused_with_attentions_reason(tmp_path: Path) -> None:
    (tmp_path / "forms.py").write_text("def other(q, stuff): ...\n")
    with pytest.raises(TargetError, match="requires parameter 'stuff', which has no role"):
        load_target(f"{tmp_path / 'forms.py'}:other", None, None)


def test_a_store_that_no_operation_takes_is_refused_with_the_reason_of_a_cache_write(tmp_path: Path) -> None:
    (tmp_path / "forms.py").write_text("def store(key, value, key_cache, value_cache, slot_mapping, groups): ...\n")
    with pytest.raises(TargetError, match=r"needs parameters that a cache write does not have: groups; state them"):
        load_target(f"{tmp_path / 'forms.py'}:store", None, None)


def test_a_logarithm_of_another_base_is_explained(tmp_path: Path) -> None:
    natural = MERGES.replace("total.log() / unit)", "total.log() / (unit if outputs.shape[-2] < 3 else 1.0))")
    target, _ = bound(natural, "returned", tmp_path)
    case = failures(target)[0]
    operation = operation_of(case)
    explained = operation.explain(operation.experiment(case, target, backend()), None).sentence
    assert explained == "scale: lse: its logarithm has base e"


DOUBLED: Final = """
def doubled(key, value, key_cache, value_cache, slot_mapping):
    size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            key_cache[slot // size, slot % size] = key[token] * FACTOR
            value_cache[slot // size, slot % size] = value[token]
"""


@pytest.mark.parametrize(("factor", "notes"), [("1", 0), ("2", 1)])
def test_a_target_that_is_bound_by_its_names_alone_is_tried_too(factor: str, notes: int, tmp_path: Path) -> None:
    (tmp_path / "writes.py").write_text(DOUBLED.replace("FACTOR", factor))
    target = load_target(f"{tmp_path / 'writes.py'}:doubled", None, None)
    _, found = operation_of(target.domain).calibrated(target, backend())
    assert len(found) == notes
    assert all("it gives wrong elements" in note and "something else" in note for note in found)
