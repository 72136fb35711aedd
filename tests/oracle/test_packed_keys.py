"""The exact outputs of attention over packed keys against loops, on the arguments that the target gets."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fuzz_attn.binding.binding import Signature
from fuzz_attn.binding.call import call_of
from fuzz_attn.binding.matching import VARLEN
from fuzz_attn.case.aspects import FEATURES_OF, Feature
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.recipes import LogSumExp, MaskKind
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.oracle.reference import Expected, attend
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.compile_keys import key_pool

Array: TypeAlias = np.typing.NDArray[Any]
Closeness: TypeAlias = Callable[[Expected, Array], bool]

ROLES = VARLEN.binding.roles
SIGNATURE = Signature(tuple(ROLES), frozenset(ROLES), positional=frozenset(), takes_any_keyword=False)
FEATURES: frozenset[Feature] = FEATURES_OF["varlen"] - {"far_axes", "bias_dtypes", "mixed_dtypes"}
DOMAIN = Domain(
    "varlen",
    dtypes=("float32",),
    head_sizes=(8, 16, 33),
    value_sizes=(1, 16, 24),
    block_sizes=(1, 5, 12),
    features=FEATURES,
    lse=LogSumExp(order="heads"),
)
KINDS: tuple[MaskKind, ...] = ("causal", "top_left", "full", "lookahead")


def looped(arguments: dict[str, Any]) -> tuple[Array, Array]:
    """Return the output ``[num_tokens, num_query_heads, head_size_v]`` and the log-sum-exps, from the contract only."""
    q, k, v = (arguments[name].double().numpy() for name in ("q", "k", "v"))
    starts, firsts = (arguments[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k"))
    used = arguments["seqused_k"]
    lengths = [end - start for start, end in pairwise(firsts)] if used is None else used.tolist()
    output, group = np.zeros((starts[-1], q.shape[1], v.shape[2])), q.shape[1] // k.shape[1]
    lse = np.full(output.shape[:2], -math.inf)
    for (start, end), first, key_len in zip(pairwise(starts), firsts, lengths, strict=False):
        for row in range(end - start):
            seen = [key for key in range(key_len) if sees(arguments, row, key, end - start, key_len)]
            for head in range(q.shape[1] if seen else 0):
                keys, values = (tensor[[first + key for key in seen], head // group] for tensor in (k, v))
                logits = arguments["softmax_scale"] * (keys @ q[start + row, head])
                cap = arguments["softcap"]
                logits = cap * np.tanh(logits / cap) if cap else logits
                if arguments["alibi_slopes"] is not None:
                    distances = np.array(seen) - (key_len - (end - start))
                    logits = logits + float(arguments["alibi_slopes"][head]) * distances
                sink = [] if arguments["sinks"] is None else [float(arguments["sinks"][head])]
                top = max([*logits, *sink])
                total = np.exp([*(logits - top), *(each - top for each in sink)]).sum()
                output[start + row, head] = np.exp(logits - top) / total @ values
                lse[start + row, head] = top + math.log(total)
    return output, lse


def sees(arguments: dict[str, Any], row: int, key: int, query_len: int, key_len: int) -> bool:
    """Return whether a query token sees a key."""
    position = row if arguments["top_left"] else row + key_len - query_len
    left, right = arguments["window_size"]
    if arguments["causal"] and key > position:
        return False
    after, before = left < 0 or key >= position - left, right < 0 or key <= position + right
    return bool(after and before)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_agrees_with_loops(kind: MaskKind, is_close: Closeness) -> None:
    keys = [key for key in key_pool(DOMAIN) if key.mask == kind]
    assert keys

    @settings(
        max_examples=25, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(cases(DOMAIN, keys=keys))
    def compare(case: AttentionCase) -> None:
        if case.num_tokens * case.max_seq_len * case.heads.num_query_heads < 20_000:
            tensors = materialise(case)
            known = attend(tensors)
            output, lse = looped(call_of(VARLEN.binding, SIGNATURE, tensors).arguments)
            assert is_close(known["out"], output)
            assert case.lse is None or is_close(known["lse"], lse.T)
            compared.append(case)

    compared: list[AttentionCase] = []
    compare()
    assert len(compared) > 5
