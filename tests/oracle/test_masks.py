"""The exact outputs of every mask against loops over rows and keys, on the arguments that the target gets."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fuzz_attn.binding.binding import Signature
from fuzz_attn.binding.call import call_of
from fuzz_attn.binding.matching import EXTEND
from fuzz_attn.case.aspects import FEATURES_OF, Feature
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.cache_layout import SLOTS
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.recipes import SIMPLEST, LogSumExp, MaskKind
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.oracle.reference import Expected, attend
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.compile_keys import key_pool

Array: TypeAlias = np.typing.NDArray[Any]
Closeness: TypeAlias = Callable[[Expected, Array], bool]

ROLES = EXTEND.binding.roles
SIGNATURE = Signature(tuple(ROLES), frozenset(ROLES), positional=frozenset(), takes_any_keyword=False)
FEATURES: frozenset[Feature] = FEATURES_OF["extend"] - {"far_axes", "fp8_kv", "fp8_out", "bias_dtypes", "mixed_dtypes"}
DOMAIN = Domain("extend", dtypes=("float32",), head_sizes=(8, 16, 33), block_sizes=(1, 4, 16), features=FEATURES)


def looped(arguments: dict[str, Any], form: LogSumExp) -> tuple[Array, Array]:
    """Return the output ``[num_tokens, num_query_heads, head_size_v]``, from the contract of the launcher only.

    And the log-sum-exp ``[num_tokens, num_query_heads]``, which this launcher does not write, by the words of a recipe.
    """
    q, k, v, k_buffer, v_buffer = (arguments[name].double().numpy() for name in ("q", "k", "v", "k_buffer", "v_buffer"))
    starts, contexts, slots = (arguments[name].tolist() for name in ("qo_indptr", "kv_indptr", "kv_indices"))
    output, group = np.zeros((starts[-1], q.shape[1], v.shape[2])), q.shape[1] // k.shape[1]
    lse = np.zeros(output.shape[:2])
    for sequence, (start, end) in enumerate(pairwise(starts)):
        own = slots[contexts[sequence] : contexts[sequence + 1]]
        lengths = end - start, len(own)
        for row, head in product(range(end - start), range(q.shape[1])):
            seen = [key for key in range(sum(lengths)) if sees(arguments, sequence, row, key, lengths)]
            places = [
                (k_buffer, v_buffer, own[key]) if key < len(own) else (k, v, start + key - len(own)) for key in seen
            ]
            scores = [score(arguments, float(q[start + row, head] @ keys[at, head // group])) for keys, _, at in places]
            values = [values[at, head // group] for _, values, at in places]
            sink = [] if arguments["sinks"] is None else [float(arguments["sinks"][head])]
            output[start + row, head] = averaged(scores, values, sink) if values else 0.0
            logits = [*scores, *sink] if form.with_sinks else scores
            lse[start + row, head] = summed(logits, form.base) if values else float(form.empty)
    return output, lse


def sees(arguments: dict[str, Any], sequence: int, row: int, key: int, lengths: tuple[int, int]) -> bool:
    """Return whether a new token sees a key."""
    query_len, context_len = lengths
    position = row if arguments["top_left"] else context_len + row
    (left, right), chunk, causal = arguments["window_size"], arguments["chunk_size"], arguments["is_causal"]
    if arguments["custom_mask"] is not None:
        bit = int(arguments["mask_indptr"][sequence]) + row * (query_len + context_len) + key
        if not arguments["custom_mask"][bit]:
            return False
    if chunk and key // chunk != position // chunk:
        return False
    behind = key - position
    return (left < 0 or behind >= -left) and behind <= (0 if causal else right if right >= 0 else behind)


def score(arguments: dict[str, Any], product: float) -> float:
    """Return a score."""
    scaled, cap = arguments["sm_scale"] * product, arguments["logit_cap"]
    return float(cap * math.tanh(scaled / cap)) if cap else float(scaled)


def averaged(scores: list[float], values: list[Array], sink: list[float]) -> Array:
    """Return the average of values by softmax."""
    top = max([*scores, *sink])
    weights = [math.exp(each - top) for each in scores]
    total = sum(weights) + sum(math.exp(each - top) for each in sink)
    return np.asarray(sum(weight / total * value for weight, value in zip(weights, values, strict=True)))


def summed(logits: list[float], base: str) -> float:
    """Return the logarithm of a sum of exponentials."""
    top = max(logits)
    natural = top + math.log(sum(math.exp(each - top) for each in logits))
    return natural if base == "e" else natural / math.log(2)


def checked(case: AttentionCase, is_close: Closeness) -> None:
    """Compare the oracle with the loops."""
    tensors = materialise(case, stored_as=SLOTS)
    known = attend(tensors)
    arguments = call_of(EXTEND.binding, SIGNATURE, tensors).arguments
    output, lse = looped(arguments, case.lse or LogSumExp())
    assert known["out"].value.isfinite().all()
    assert is_close(known["out"], output)
    assert set(known) == ({"out"} if case.lse is None else {"out", "lse"})
    if case.lse is not None:
        assert is_close(known["lse"], lse if case.lse.order == "tokens" else lse.T)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", SIMPLEST)
def test_the_oracle_agrees_with_loops(kind: MaskKind, is_close: Closeness) -> None:
    keys = [key for key in key_pool(DOMAIN) if key.mask == kind]
    assert keys

    @settings(
        max_examples=20, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(cases(DOMAIN.in_memory(), keys=keys))
    def compare(case: AttentionCase) -> None:
        if case.num_tokens * case.max_seq_len * case.heads.num_query_heads < 20_000:
            checked(case, is_close)
            compared.append(case)

    compared: list[AttentionCase] = []
    compare()
    assert len(compared) > 5
