"""Fixtures of the oracle's tests: attention computed row by row, and tensors built by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.storage import output_poison
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.reference import Expected

Row = tuple[int, int, int, int]
"""token, sequence, position, head"""


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class RowView:
    """One row and the keys that it sees, read one by one through the block table, as exact float64 numbers."""

    token: int
    head: int
    position: int
    context_len: int
    query: np.ndarray[Any, np.dtype[np.float64]]
    keys: np.ndarray[Any, np.dtype[np.float64]]
    values: np.ndarray[Any, np.dtype[np.float64]]
    key_positions: np.ndarray[Any, np.dtype[np.int64]]
    bias: np.ndarray[Any, np.dtype[np.float64]]
    """The sum of ALiBi and query-query bias for each key."""
    scale: float
    sink: float
    factor: float
    """The factor of the average of V."""


Choice = Callable[[str, Any], Any]
"""A possible mistake: takes the name of a decision and the right answer, and returns the answer to use."""


def right(_name: str, answer: Any) -> Any:
    """Return the right answer of every decision."""
    return answer


def scalar(tensor: torch.Tensor | None) -> float:
    return 1.0 if tensor is None else float(tensor)


def dequantised(row: torch.Tensor, scale: float, dtype: torch.dtype) -> Any:
    if row.dtype.itemsize > 1 or dtype.itemsize == 1:
        return row.double().numpy()
    return (row.float() * torch.tensor(scale, dtype=torch.float32)).to(dtype).double().numpy()


def rows_of(tensors: AttentionTensors, choose: Choice = right) -> Iterator[RowView]:
    """Yield every row as the specification defines it; ``choose`` may change one decision."""
    fp8 = tensors.query.dtype.itemsize == 1
    num_heads, num_kv_heads = tensors.query.shape[1], tensors.key_cache.shape[2]
    block_size, token = tensors.key_cache.shape[1], 0
    k_scale = choose("k_scale", scalar(tensors.k_scale))
    v_scale = choose("v_scale", scalar(tensors.v_scale))
    scale = tensors.softmax_scale * (scalar(tensors.q_scale) * k_scale if fp8 else 1.0)
    factor = v_scale if fp8 else 1.0
    if tensors.output.dtype.itemsize == 1:
        factor = choose("out_scale", factor / scalar(tensors.out_scale))
    for sequence, (query_len, context_len) in enumerate(zip(tensors.query_lens, tensors.context_lens, strict=True)):
        for index in range(query_len):
            position = context_len + index
            first = max(0, position - choose("window", tensors.window) + 1) if tensors.window else 0
            seen = [j for j in range(first, choose("last_key", position) + 1) if j < context_len + query_len]
            slots = [(int(tensors.block_table[sequence, j // block_size]), j % block_size) for j in seen]
            for head in range(num_heads):
                group = num_heads // num_kv_heads
                kv_head = choose("kv_head", (head // group, head % num_kv_heads))
                kv_head = kv_head[0] if isinstance(kv_head, tuple) else kv_head
                origin = choose("alibi_origin", (context_len, position))
                origin = origin[0] if isinstance(origin, tuple) else origin
                bias = np.zeros(len(seen))
                if tensors.alibi_slopes is not None:
                    slope = choose("slope", float(tensors.alibi_slopes[head]))
                    bias += slope * (np.array(seen) - origin)
                if tensors.qq_bias is not None:
                    shift = choose("qq_origin", context_len)
                    for n, j in enumerate(seen):
                        if 0 <= j - shift < tensors.qq_bias.shape[1] and shift == context_len:
                            bias[n] += float(tensors.qq_bias[choose("qq_index", (index, j - shift))])
                        elif shift != context_len and j < tensors.qq_bias.shape[1]:
                            bias[n] += float(tensors.qq_bias[index, j])
                sink = -np.inf if tensors.sinks is None else float(tensors.sinks[head])
                dtype = tensors.query.dtype
                yield RowView(
                    token=token,
                    head=head,
                    position=position,
                    context_len=context_len,
                    query=tensors.query[token, head].double().numpy(),
                    keys=np.array([dequantised(tensors.key_cache[b, s, kv_head], k_scale, dtype) for b, s in slots]),
                    values=np.array(
                        [dequantised(tensors.value_cache[b, s, kv_head], v_scale, dtype) for b, s in slots]
                    ),
                    key_positions=np.array(seen),
                    bias=bias,
                    scale=choose("scale", scale),
                    sink=choose("sink", sink),
                    factor=factor,
                )
            token += 1


def attend_plainly(tensors: AttentionTensors, choose: Choice = right) -> torch.Tensor:
    """Return the float64 output ``[num_tokens, num_query_heads, head_size]``, clamped for fp8 but not rounded."""
    out = torch.empty(sum(tensors.query_lens), *tensors.output.shape[1:], dtype=torch.float64)
    cap = choose("softcap", tensors.softcap)
    for row in rows_of(tensors, choose):
        scores = row.keys @ row.query * row.scale
        if choose("cap_after_bias", False):
            scores = cap * np.tanh((scores + row.bias) / cap)
        else:
            scores = (cap * np.tanh(scores / cap) if cap else scores) + row.bias
        top = max(scores.max(), row.sink)
        weights = np.exp(scores - top)
        total = weights.sum() + choose("sinks_counted", 1) * np.exp(row.sink - top)
        out[row.token, row.head] = torch.from_numpy(weights @ row.values / total * row.factor)
    if tensors.output.dtype.itemsize == 1 and choose("clamp", True):
        limit = torch.finfo(tensors.output.dtype).max
        out = out.clamp(-limit, limit)
    return out


@pytest.fixture(scope="session")
def plainly() -> Callable[..., torch.Tensor]:
    """Return the function that computes attention in float64, one row at a time."""
    return attend_plainly


@pytest.fixture(scope="session")
def row_views() -> Callable[..., Iterator[RowView]]:
    """Return the function that yields the rows of a batch with the keys that they see."""
    return rows_of


def with_output(tensors: AttentionTensors, output: torch.Tensor) -> AttentionTensors:
    """Return the tensors with ``output`` written into a copy of their output, rounded to its type."""
    written = tensors.output.clone()
    written[: output.shape[0]] = output.to(written.dtype)
    return tensors.with_outputs(out=written)


@pytest.fixture(scope="session")
def writing() -> Callable[[AttentionTensors, torch.Tensor], AttentionTensors]:
    return with_output


def hand_built(
    query: list[list[float]],
    keys: list[list[float]],
    values: list[list[float]],
    dtype: torch.dtype = torch.float32,
    output: torch.Tensor | None = None,
    **changes: Any,
) -> AttentionTensors:
    """Return tensors of one sequence and one head with these rows of queries, keys and values, in pages of 4 slots."""
    q, k, v = (torch.tensor(rows, dtype=torch.float64).to(dtype)[:, None] for rows in (query, keys, values))
    num_blocks = -(-len(keys) // 4) + 1
    caches = [torch.full((num_blocks * 4, 1, q.shape[-1]), torch.nan).to(dtype) for _ in "kv"]
    for cache, rows in zip(caches, (k, v), strict=True):
        cache[: len(keys)] = rows
    poison = output_poison("float32", 0)
    base = AttentionTensors(
        query=q,
        key_cache=caches[0].view(num_blocks, 4, 1, -1),
        value_cache=caches[1].view(num_blocks, 4, 1, -1),
        outputs={"out": OutputTensor(torch.full_like(q, torch.nan) if output is None else output, poison)},
        query_start_loc=torch.tensor([0, len(query)], dtype=torch.int32),
        seq_lens=torch.tensor([len(keys)], dtype=torch.int32),
        block_table=torch.arange(num_blocks, dtype=torch.int32)[None],
        query_lens=(len(query),),
        context_lens=(len(keys) - len(query),),
        softmax_scale=1.0,
    )
    return replace(base, **changes)


@pytest.fixture(scope="session")
def by_hand() -> Callable[..., AttentionTensors]:
    return hand_built


@pytest.fixture
def is_close() -> Callable[[Expected, np.ndarray[Any, np.dtype[np.float64]]], bool]:
    """Return a function that says whether the oracle agrees with the same output computed in loops."""

    def close(expected: Expected, found: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
        """Return whether both agree to a millionth of the bound."""
        judged = expected.judged.expand_as(expected.value) & expected.bound.isfinite()
        loops = torch.from_numpy(found)
        # Equal infinities have no difference.
        error = (expected.value - loops).abs().masked_fill(expected.value == loops, 0.0)
        assert (expected.bound > 0).all()
        return bool((error[judged] <= 1e-6 * expected.bound[judged]).all())

    return close
