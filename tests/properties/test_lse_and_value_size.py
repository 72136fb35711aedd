"""A log-sum-exp and values of another size than keys, of a target of the user's own that promises both."""

from __future__ import annotations

import math
from random import Random
from typing import Any, Final

import pytest
import torch

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.binding.binding import Binding, binding_of
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import HeadLayout, PageLayout, Sequence
from fuzz_attn.case.recipes import LogSumExp
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.properties.check import all_failures
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.relations import relations_of
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.sampling.draws import Sample
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
