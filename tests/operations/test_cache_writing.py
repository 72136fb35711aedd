"""Cache writes, end to end: the healthy kernel passes, seeded bugs are found, explained, shrunk and saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from fuzz_attn import counterexamples
from fuzz_attn.binding.binding import binding_of
from fuzz_attn.engine.failures.reduction import simplify
from fuzz_attn.engine.orders import Order
from fuzz_attn.errors import TargetError
from fuzz_attn.kernels.cache_write import cache_write
from fuzz_attn.kernels.common.contract import ContractError
from fuzz_attn.operations.cache_write import write_experiment
from fuzz_attn.operations.cache_write.write_case import WriteCase, WriteDomain, described, key_pool
from fuzz_attn.operations.registry import operation_of, operation_of_family
from fuzz_attn.oracle.verdict import Verdict
from tests.operations.edited import EditedKernel, backend, drawn

KERNEL: Final = EditedKernel("cache_write")
OPERATION: Final = KERNEL.operation
DOMAIN: Final = WriteDomain()


def test_the_healthy_kernel_passes() -> None:
    target = OPERATION.load_target("cache_write", None, None)
    cases = drawn(DOMAIN, 1, 200)
    # tests/fuzz judges more cases, of another round.
    assert not [(case, failed) for case, relation in cases[:40] if (failed := KERNEL.judged(target, case, relation))]
    assert {relation for _, relation in cases} == {None, *OPERATION.relations}
    assert {case.dtype for case, _ in cases} == set(DOMAIN.dtypes)
    assert {case.stored_as for case, _ in cases} == set(DOMAIN.stored_as)
    assert {name for case, _ in cases for name in OPERATION.all_features_of(case)} == set(OPERATION.features)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", KERNEL.bugs)
def test_a_seeded_bug_is_found_within_a_round(name: str, tmp_path: Path) -> None:
    target = KERNEL.target_with(name, tmp_path)
    assert any(KERNEL.judged(target, case, relation) for case, relation in drawn(DOMAIN, 2, 300))


def test_a_bug_shrinks_to_one_token_and_one_head(tmp_path: Path) -> None:
    target = KERNEL.target_with("write_multiplies_by_the_scale", tmp_path)
    case = WriteCase(9, 3, 80, 24, 2, "bfloat16", "float8_e5m2", 37.0, 18.5, 111.0, True, True, True, 3, 1, True, 3)
    fails: Callable[[Order], bool] = lambda order: bool(KERNEL.judged(target, order.case, order.relation))  # noqa: E731
    assert fails(Order(case))
    found = simplify(Order(case, "determinism"), fails, DOMAIN)
    assert found == Order(WriteCase(stored_as="float8_e4m3fn", k_scale=found.case.k_scale, v_scale=found.case.v_scale))
    assert (found.case.k_scale, found.case.v_scale) in {(1.0, 2.0), (2.0, 1.0), (0.5, 1.0), (1.0, 0.5)}


def test_attention_reads_what_was_written() -> None:
    target = OPERATION.load_target("cache_write", None, None)
    relation: Any = OPERATION.relations["read_back"]
    cases = [case for case, _ in drawn(DOMAIN, 4, 40) if relation.holds(case, DOMAIN)]
    assert len({case.stored_as for case in cases}) == 5
    assert not [case for case in cases if KERNEL.judged(target, case, "read_back")]


@pytest.mark.parametrize("cache", ["key_cache", "value_cache"])
def test_a_page_that_attention_reads_elsewhere_is_found(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write agrees with its oracle; another idea of slots, shared by both, shows when attention reads."""
    target = OPERATION.load_target("cache_write", None, None)
    case = WriteCase(9, 2, page_size=4, skipped=True, seed=1 if cache == "key_cache" else 2)
    assert not KERNEL.judged(target, case, "read_back")

    def of_the_neighbour(given: Any, token: torch.Tensor) -> torch.Tensor:
        return slot_of(given, token).roll(1)

    slot_of = write_experiment.slots_of_tokens
    monkeypatch.setattr(write_experiment, "slots_of_tokens", of_the_neighbour)
    (verdict,) = KERNEL.judged(target, case, "read_back")
    assert (verdict.property_name, verdict.kind) == ("read_back", "mismatch")
    assert verdict.message.startswith(f"unified attention on the written {cache}: ")


TORCH: Final = """
import torch

def write(key, value, key_cache, value_cache, slot_mapping, k_scale, v_scale):
    assert key_cache.dtype != torch.int8
    for new, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                page, place = divmod(slot, cache.shape[1])
                numbers = new[token].float()
                if cache.dtype.itemsize == 1:
                    numbers = numbers / scale
                    limit = torch.finfo(cache.dtype).max
                    numbers = numbers.clamp(-limit, limit)
                cache[page, place] = numbers.to(cache.dtype)

def without_scales(key, value, key_cache, value_cache, slot_mapping):
    one = torch.ones(1)
    write(key, value, key_cache, value_cache, slot_mapping, one, one)
"""


def test_a_loop_in_torch_passes(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    file.write_text(TORCH)
    target = OPERATION.load_target(f"{file}:write", "cache_write", None)
    cases = [(case, relation) for case, relation in drawn(DOMAIN, 3, 60) if not case.per_token_head]
    assert not [case for case, relation in cases if KERNEL.judged(target, case, relation)]


def test_an_fp8_cast_that_does_not_saturate_is_found(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    file.write_text(TORCH.replace("numbers = numbers.clamp(-limit, limit)", "pass"))
    target = OPERATION.load_target(f"{file}:write", "cache_write", None)
    cases = [(case, relation) for case, relation in drawn(DOMAIN, 3, 300) if not case.per_token_head]
    assert not [case for case, relation in cases[:60] if not case.overflows and KERNEL.judged(target, case, relation)]
    found = [case for case, relation in cases if case.overflows and KERNEL.judged(target, case, relation)]
    assert found
    explained = OPERATION.explain(OPERATION.experiment(found[0], target, backend()), None)
    assert explained.sentence.startswith("scale: ")
    assert "numbers beyond the largest of the cache are not clamped" in explained.sentence


def test_a_launcher_that_asks_for_a_gpu_is_told_of_one(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    file.write_text(
        TORCH.replace("    assert key", "    assert torch.cuda.get_device_capability() >= (9, 0)\n    assert key")
    )
    target = OPERATION.load_target(f"{file}:write", "cache_write", None)
    assert not KERNEL.judged(dataclasses.replace(target, without_gpu=True), WriteCase(num_tokens=2))


CASTS: Final = {"same", "float16", "bfloat16"}
FP8: Final = {"float8_e4m3fn", "float8_e5m2"}
OWN: Final = {"int8_token_head", "float8_e4m3fn_token_head"}


@pytest.mark.parametrize(
    ("parameters", "stored_as"),
    [
        ("", CASTS),
        (", k_scale, v_scale", CASTS | FP8),
        (", k_scale_cache, v_scale_cache", OWN),
        (", k_scale_cache=None, v_scale_cache=None", CASTS | OWN),
        (", k_scale=None, v_scale=None, k_scale_cache=None, v_scale_cache=None", CASTS | FP8 | OWN),
    ],
)
def test_parameters_for_scales_decide_the_types_of_caches(parameters: str, stored_as: set[str], tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(f"def write(key, value, key_cache, value_cache, slot_mapping{parameters}): ...\n")
    domain: Any = OPERATION.load_target(f"{file}:write", "cache_write", None).domain
    assert set(domain.stored_as) == stored_as
    assert {key.stored_as for key in key_pool(domain)} == stored_as


def test_a_function_with_other_parameters_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.py"
    file.write_text(
        "def write(key, value, key_cache, value_cache, slot_mapping, stream): ...\ndef less(key, value): ...\n"
    )
    with pytest.raises(TargetError, match="needs parameters that a cache write does not have: stream"):
        OPERATION.load_target(f"{file}:write", "cache_write", None)
    with pytest.raises(TargetError, match="lacks the parameters key_cache, value_cache, slot_mapping"):
        OPERATION.load_target(f"{file}:less", "cache_write", None)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"roles": {"nope": "slot_mapping"}}, "states parameter 'nope', which the signature lacks"),
        ({"constants": {"nope": 1}}, "states parameter 'nope', which the signature lacks"),
        ({"roles": {"more": "slot_mapping"}}, "two parameters for the role slot_mapping: slot_mapping and more"),
        ({"sizes": {"more": "2 * head_size"}}, "states 'more' under .* which a cache write does not have"),
        ({"tensors": {"more": {"shape": [1]}}}, "states 'more' under .tensors., .sizes. or .paths."),
    ],
)
def test_what_a_binding_states_is_taken_or_refused(stated: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "other.py"
    file.write_text("def write(key, value, key_cache, value_cache, slot_mapping, more=None): ...\n")
    with pytest.raises(TargetError, match=words):
        OPERATION.load_target(f"{file}:write", "cache_write", binding_of(stated))


def test_a_counterexample_names_its_operation(tmp_path: Path) -> None:
    case = WriteCase(num_tokens=3, skipped=True, stored_as="float8_e4m3fn", k_scale=2.0)
    found = counterexamples.signed("kernel.py:write", "cache_write", "token_order", case, Verdict("oracle", "nan"))
    path = counterexamples.save(found, tmp_path)
    assert '"operation": "cache_write"' in path.read_text(encoding="utf-8")
    assert counterexamples.load(path) == found


def test_the_operation_follows_from_case_domain_and_family() -> None:
    assert operation_of(WriteCase()) is operation_of(DOMAIN) is operation_of_family("cache_write") is OPERATION


def test_two_different_cases_have_different_descriptions() -> None:
    cases = {case for case, _ in drawn(DOMAIN, 1, 200)}
    assert len({str(described(case)) for case in cases}) == len(cases)


def test_a_case_loses_each_of_its_traits() -> None:
    for case, _ in drawn(DOMAIN, 1, 200):
        for trait in OPERATION.aspects.traits:
            given: Any = case
            without = trait.without(given)
            assert not trait.present(without), trait.words


def test_each_type_meets_several_page_sizes() -> None:
    pages: dict[tuple[str, str], set[int]] = {}
    for key in key_pool(DOMAIN):
        pages.setdefault((key.dtype, key.stored_as), set()).add(key.page_size)
    assert len(pages) == 19
    assert min(map(len, pages.values())) > 8


def given() -> dict[str, torch.Tensor]:
    tensors = {name: torch.zeros(3, 2, 16) for name in ("key", "value")}
    caches = {name: torch.zeros(2, 16, 2, 16) for name in ("key_cache", "value_cache")}
    return tensors | caches | {"slot_mapping": torch.arange(3)}


WRONG: Final = {
    "key_cache has shape": {"key_cache": torch.zeros(2, 16, 3, 16)},
    "value_cache has shape": {"value_cache": torch.zeros(2, 8, 2, 16)},
    "value has dtype float16": {"value": torch.zeros(3, 2, 16, dtype=torch.float16)},
    "value_cache has dtype float16": {"value_cache": torch.zeros(2, 16, 2, 16, dtype=torch.float16)},
    "key_cache has dtype float64": {"key_cache": torch.zeros(2, 16, 2, 16, dtype=torch.float64)},
    "slot_mapping has dtype int32": {"slot_mapping": torch.arange(3, dtype=torch.int32)},
    "slot_mapping has stride 2": {"slot_mapping": torch.arange(6)[::2]},
    "key has 3 rows, must have at least num_tokens=4": {"slot_mapping": torch.arange(4)},
    "key has stride 2 in its last dimension": {"key": torch.zeros(3, 2, 32)[..., ::2]},
    "head_size=257": {"key": torch.zeros(3, 2, 257)},
    "k_scale must be given": {name: torch.zeros(2, 16, 2, 16, dtype=torch.float8_e4m3fn)
                              for name in ("key_cache", "value_cache")},
    "k_scale has shape": {"k_scale": torch.ones(2)},
    "v_scale_cache must be given": {
        **{name: torch.zeros(2, 16, 2, 16, dtype=torch.int8) for name in ("key_cache", "value_cache")},
        "k_scale_cache": torch.zeros(2, 16, 2),
    },
    "v_scale_cache must be None": {"v_scale_cache": torch.zeros(2, 16, 2)},
    "key_cache has dtype float32, must be one of int8": {"k_scale_cache": torch.zeros(2, 16, 2)},
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG)
def test_the_contract_names_what_it_refuses(words: str) -> None:
    with pytest.raises(ContractError, match=words):
        cache_write(**given() | WRONG[words])
