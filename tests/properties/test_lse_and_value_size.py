"""A log-sum-exp and values of another size than keys, of a target of the user's own that promises both."""

from __future__ import annotations

import itertools
import math
from random import Random
from typing import Any, Final

import pytest
import torch

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.binding.binding import Binding, binding_of
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import DTypes, HeadLayout, PageLayout, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, LogSumExp, SinkRecipe
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.oracle.reference import Expected
from fuzz_attn.properties.check import all_failures
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.relation_launches import expected_of, merge
from fuzz_attn.properties.relations import relations_of
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.draws import Sample
from fuzz_attn.targets.loading import as_target
from fuzz_attn.targets.target import Target

CASE: Final = AttentionCase(
    (Sequence(2, 9), Sequence(1, 30)),
    heads=HeadLayout(2, 2, 12, 7),
    pages=PageLayout(block_size=4),
    lse=LogSumExp("2", "heads"),
)
STATED: Final[dict[str, Any]] = {
    "roles": {"lse": "lse"},
    "off": {"lse": "None"},
    "promises": ["lse", "head_size_v"],
    "domain": {"lse": {"base": "2", "order": "heads"}, "head_sizes": [1, 40], "value_sizes": [1, 33]},
}


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    softmax_scale: float,
    block_table: torch.Tensor,
    lse: torch.Tensor | None = None,
    *,
    base: float = 2.0,
) -> None:
    """Write the output and its log-sum-exp ``[num_query_heads, num_tokens]``."""
    starts, lengths, size, group = cu_seqlens_q.tolist(), seqused_k.tolist(), k.shape[1], q.shape[1] // k.shape[2]
    for sequence, length in enumerate(lengths):
        places = torch.arange(length)
        pages = block_table[sequence, places // size].long()
        keys, values = (cache[pages, places % size].double().repeat_interleave(group, 1) for cache in (k, v))
        for token in range(starts[sequence], starts[sequence + 1]):
            seen = length - starts[sequence + 1] + token + 1
            scores = torch.einsum("hd,khd->hk", q[token].double(), keys[:seen]) * softmax_scale
            out[token] = torch.einsum("hk,khd->hd", scores.softmax(-1), values[:seen]).to(out.dtype)
            if lse is not None:
                lse[:, token] = (scores.logsumexp(-1) / math.log(base)).float()


def in_base_e(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    softmax_scale: float,
    block_table: torch.Tensor,
    lse: torch.Tensor | None = None,
) -> None:
    attend(q, k, v, out, cu_seqlens_q, seqused_k, softmax_scale, block_table, lse, base=math.e)


def target_of(call: Any) -> Target:
    stated = binding_of(STATED)
    assert isinstance(stated, Binding)
    return as_target(call, "mine", None, stated)


def test_drawn_cases_have_both_and_pass() -> None:
    target, random = target_of(attend), Random(5)
    drawn = [Sample(random).draw(cases(target.domain.in_memory(), variants=1)) for _ in range(120)]
    chosen = [case for case in drawn if case.total_keys < 200][:40]
    assert any(case.lse and case.heads.value_size > case.heads.head_size for case in chosen)
    assert any(case.lse and case.heads.value_size < case.heads.head_size for case in chosen)
    assert {case.lse for case in chosen} == {None, LogSumExp("2", "heads")}
    for case in chosen:
        relations = relations_of(case, target.domain)
        relation = relations[case.seed % len(relations)]
        verdicts = all_failures(Experiment(case, target, SimulatorBackend()), relation)
        assert all(verdict.passed for verdict in verdicts), (case, relation, verdicts)


def test_a_wrong_base_fails() -> None:
    (verdict,) = all_failures(Experiment(CASE, target_of(in_base_e), SimulatorBackend()))
    assert (verdict.output, verdict.kind) == ("lse", "mismatch")


@pytest.mark.parametrize(("size", "shape"), [(7, 7), (20, 20), (0, 12)])
def test_values_and_output_have_their_own_size(size: int, shape: int) -> None:
    tensors = materialise(replace(CASE, heads=HeadLayout(2, 2, 12, size)))
    assert (tensors.query.shape[-1], tensors.key_cache.shape[-1]) == (12, 12)
    assert (tensors.value_cache.shape[-1], tensors.output.shape[-1]) == (shape, shape)


def wrong_in_decodes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    softmax_scale: float,
    block_table: torch.Tensor,
    lse: torch.Tensor | None = None,
) -> None:
    attend(q, k, v, out, cu_seqlens_q, seqused_k, softmax_scale, block_table, lse)
    if lse is not None and len(q) == len(seqused_k):
        lse[0, 0] += 1e-3


def test_halves_of_the_keys_find_a_log_sum_exp_that_is_wrong_in_decodes_only() -> None:
    right, wrong = target_of(attend), target_of(wrong_in_decodes)
    relations = relations_of(CASE, right.domain)
    assert "cut_by_keys" in relations
    for relation in relations:
        assert all(verdict.passed for verdict in all_failures(Experiment(CASE, right, SimulatorBackend()), relation))
        verdicts = all_failures(Experiment(CASE, wrong, SimulatorBackend()), relation)
        assert all(verdict.passed for verdict in verdicts) == (relation != "cut_by_keys"), relation
    (verdict,) = all_failures(Experiment(CASE, wrong, SimulatorBackend()), "cut_by_keys")
    assert (verdict.property_name, verdict.output) == ("cut_by_keys", "out")
    assert verdict.message.startswith("a launch of each half of the keys, merged: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"lse": None},
        {"sinks": SinkRecipe()},
        {"alibi": AlibiRecipe()},
        {"window": 3},
        {"pages": PageLayout(block_size=32)},
        {"dtypes": DTypes(out="float8_e5m2")},
    ],
)
def test_what_cannot_be_merged_is_not_cut(changes: dict[str, Any]) -> None:
    assert "cut_by_keys" not in relations_of(replace(CASE, **changes), target_of(attend).domain)


@pytest.mark.parametrize("unit", [1.0, math.log(2.0)])
def test_halves_at_their_bounds_stay_within_the_merged_bound_and_come_close(unit: float) -> None:
    random, largest = torch.Generator().manual_seed(3), {"out": 0.0, "lse": 0.0}
    for spread in (0.0, 1.0, 30.0):
        out = torch.randn(2, 3, 5, generator=random, dtype=torch.float64)
        lse = spread * torch.randn(3, 2, generator=random, dtype=torch.float64)
        bounds = 1e-4 * torch.rand(2, 3, 5, generator=random), 1e-3 * torch.rand(3, 2, generator=random)
        given = [Expected(value, bound.double(), torch.ones(1, 1, 1, dtype=torch.bool)[0 if value is lse else ...])
                 for value, bound in zip((out, lse), bounds, strict=True)]  # fmt: skip
        exact = expected_of(given[0], given[1], unit, 1)
        for signs in itertools.product((-1.0, 1.0), repeat=4):
            of_out, of_lse = torch.tensor(signs[:2])[:, None, None], torch.tensor(signs[2:])
            moved = out + of_out * given[0].bound, lse + of_lse * given[1].bound
            value, total = merge(moved[0], moved[1] * unit, 1)
            for name, found in (("out", value), ("lse", total / unit)):
                ratio = float(((found - exact[name].value).abs() / exact[name].bound).max())
                assert ratio <= 1.0
                largest[name] = max(largest[name], ratio)
    assert min(largest.values()) > 0.95
