"""`unified_attention` in Triton's interpreter against a slow float64 reference, row by row by the definition.

Every case is poisoned: cache slots that no query may see hold NaN, block-table entries past the last page and before
the window point past the end of the cache (guard pages full of NaN), and the output and the gaps between its rows start
as NaN. A test fails if an output differs from the reference by more than its bound.
"""

import dataclasses
import math
import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("these tests run kernels on a CPU: set TRITON_INTERPRET=1 before Triton is imported")

from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.kernels.common.contract import FP8_DTYPES
from fuzz_attn.kernels.unified_attention import unified_attention

GUARD_PAGES = 3
NO_WINDOW = 0
TANH_UNITS = 24
"""What the soft cap's tanh may lose, as `fuzz_attn/targets.py` derives it."""
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def unit_roundoff(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def underflow(dtype: torch.dtype) -> float:
    """Half the smallest positive number: what rounding to a subnormal may lose."""
    return torch.finfo(dtype).tiny * torch.finfo(dtype).eps / 2


@dataclass(frozen=True)
class Problem:
    """One call of `unified_attention`, as plain data."""

    sequences: tuple[tuple[int, int], ...] = ((2, 7), (1, 40), (6, 20))  # (query_len, context_len)
    num_query_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 24
    block_size: int = 5
    window: int = NO_WINDOW
    softcap: float = 0.0
    alibi: bool = False
    qq_bias_cols: int | None = None
    sink: float | None = None
    q_dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype = torch.float32
    out_dtype: torch.dtype | None = None
    q_scale: float = 1.0
    output_scale: float = 1.0
    k_scale: float = 1.0
    v_scale: float = 1.0
    layout: str = "apart"
    padding_rows: int = 0
    strided: bool = False
    score_shift: float = 0.0
    num_segments: int | None = 0
    tile_size: int | None = 16

    @property
    def query_lens(self) -> list[int]:
        return [query_len for query_len, _ in self.sequences]

    @property
    def num_tokens(self) -> int:
        return sum(self.query_lens)

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_size)

    @property
    def quantized_q(self) -> bool:
        return self.q_dtype in FP8_DTYPES

    @property
    def quantized_kv(self) -> bool:
        return self.kv_dtype in FP8_DTYPES

    @property
    def weight_dtype(self) -> torch.dtype:
        """The dtype of the softmax weights in the dot product with the values."""
        return torch.bfloat16 if self.quantized_q else self.q_dtype


@dataclass
class Inputs:
    """The tensors of a problem; `out_storage` is what `out` is a view of."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    out_storage: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    true_block_table: torch.Tensor
    alibi_slopes: torch.Tensor | None
    qq_bias: torch.Tensor | None
    sinks: torch.Tensor | None


def first_visible(problem: Problem, query: int, context_len: int) -> int:
    return max(0, context_len + query - problem.window + 1) if problem.window else 0


def make_caches(problem: Problem, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value cache full of poison, in one of the layouts that engines allocate; guard pages follow."""
    pages = num_blocks + GUARD_PAGES
    page = (problem.block_size, problem.num_kv_heads, problem.head_size)
    if problem.layout == "kv_outside":
        k, v = torch.empty(2, pages, *page, dtype=problem.kv_dtype)
    elif problem.layout == "kv_inside":
        k, v = torch.empty(pages, 2, *page, dtype=problem.kv_dtype).unbind(1)
    elif problem.layout == "heads_first":
        k, v = torch.empty(2, pages, page[1], page[0], page[2], dtype=problem.kv_dtype).transpose(2, 3)
    elif problem.layout == "unlike":
        k = torch.empty(pages, *page, dtype=problem.kv_dtype)
        v = torch.empty(pages, page[0], page[1] + 1, page[2] + 3, dtype=problem.kv_dtype)[:, :, 1:, : page[2]]
    else:
        k, v = torch.empty(pages, *page, dtype=problem.kv_dtype), torch.empty(pages, *page, dtype=problem.kv_dtype)
    for cache in (k, v):
        cache.copy_(torch.full(cache.shape, math.nan))
    return k[:num_blocks], v[:num_blocks]


def make_rows(problem: Problem, fill: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(view, storage): `fill` in rows with gaps in both leading dimensions if the problem is strided."""
    rows, heads, head_size = fill.shape
    extra = (1, 5) if problem.strided else (0, 0)
    storage = torch.full((rows + 1, heads + extra[0], head_size + extra[1]), math.nan).to(fill.dtype)
    view = storage[:rows, :heads, :head_size]
    view.copy_(fill)
    return view, storage


def make_inputs(problem: Problem, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    heads, num_seqs = problem.num_query_heads, len(problem.sequences)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    seq_lens = [query_len + context_len for query_len, context_len in problem.sequences]
    pages = [-(-seq_len // problem.block_size) for seq_len in seq_lens]
    num_blocks = sum(pages) + 2
    width = max(pages, default=0) + 2
    k, v = make_caches(problem, num_blocks)
    shuffled = torch.randperm(num_blocks, generator=generator).tolist()
    garbage = num_blocks + torch.randint(GUARD_PAGES, (num_seqs, width), generator=generator, dtype=torch.int32)
    block_table, true_block_table = garbage.clone(), garbage.clone()
    for i, (query_len, context_len) in enumerate(problem.sequences):
        owned = [shuffled.pop() for _ in range(pages[i])]
        true_block_table[i, : pages[i]] = torch.tensor(owned, dtype=torch.int32)
        first = first_visible(problem, 0, context_len)
        block_table[i, first // problem.block_size : pages[i]] = true_block_table[
            i, first // problem.block_size : pages[i]
        ]
        for j in range(first if query_len else seq_lens[i], seq_lens[i]):
            page, slot = owned[j // problem.block_size], j % problem.block_size
            k[page, slot] = (normal(*k.shape[2:]) + problem.score_shift).to(k.dtype)
            v[page, slot] = normal(*v.shape[2:]).to(v.dtype)
    rows = problem.num_tokens + problem.padding_rows
    q, _ = make_rows(problem, (normal(rows, heads, problem.head_size) - problem.score_shift).to(problem.q_dtype))
    unwritten = torch.full(q.shape, math.nan).to(problem.out_dtype or problem.q_dtype)
    out, out_storage = make_rows(problem, unwritten)
    qq_bias = None
    if problem.qq_bias_cols is not None:
        side = max(problem.query_lens)
        matrix = normal(side + 4, problem.qq_bias_cols + 6)
        if problem.strided:
            matrix = matrix.T.contiguous().T  # no stride of it is 1 but the first
        matrix[normal(*matrix.shape) < -0.5] = -math.inf
        qq_bias = matrix[2:-2, 3 : 3 + problem.qq_bias_cols] if problem.strided else matrix[:, : problem.qq_bias_cols]
        qq_bias.diagonal().copy_(normal(*qq_bias.diagonal().shape))
    return Inputs(
        q=q,
        k=k,
        v=v,
        out=out,
        out_storage=out_storage,
        query_start_loc=torch.tensor([0, *problem.query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_table=block_table,
        true_block_table=true_block_table,
        alibi_slopes=torch.linspace(-0.3, 0.7, heads) if problem.alibi else None,
        qq_bias=qq_bias,
        sinks=normal(heads).add(problem.sink).to(problem.weight_dtype) if problem.sink is not None else None,
    )


def call(problem: Problem, inputs: Inputs) -> torch.Tensor:
    """Run the kernels; return the rows that belong to tokens."""
    quantized_output = inputs.out.dtype in FP8_DTYPES
    unified_attention(
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.out,
        inputs.query_start_loc,
        max(problem.query_lens, default=0),
        inputs.seq_lens,
        int(inputs.seq_lens.max()) if len(inputs.seq_lens) else 0,
        problem.scale,
        True,
        (problem.window - 1, 0) if problem.window else (-1, -1),
        inputs.block_table,
        problem.softcap,
        torch.tensor([problem.q_scale]) if problem.quantized_q else None,
        torch.tensor([problem.k_scale]) if problem.quantized_kv else None,
        torch.tensor([problem.v_scale]) if problem.quantized_kv else None,
        alibi_slopes=inputs.alibi_slopes,
        qq_bias=inputs.qq_bias,
        sinks=inputs.sinks,
        output_scale=torch.tensor([problem.output_scale]) if quantized_output else None,
        num_segments=problem.num_segments,
        tile_size=problem.tile_size,
    )
    return inputs.out[: problem.num_tokens]


def gather(problem: Problem, cache: torch.Tensor, pages: torch.Tensor, seq_len: int, scale: float) -> torch.Tensor:
    """Keys or values of one sequence, float64 [seq_len, num_kv_heads, head_size], rounded as the contract says."""
    rows = [cache[pages[j // problem.block_size], j % problem.block_size].float() for j in range(seq_len)]
    stored = torch.stack(rows)
    if not problem.quantized_kv:
        return stored.double()
    if problem.quantized_q:
        return stored.double() * float(torch.tensor(scale))
    return (stored * torch.tensor(scale)).to(problem.q_dtype).double()


def attend_head(
    problem: Problem, inputs: Inputs, head: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(value, bound) of one head of one sequence, float64 [query_len, head_size], step by step.

    The bound is of first order: errors of the logits move weight between the values, and weights,
    sums and the store are rounded.
    """
    query_len, seq_len = q.shape[0], k.shape[0]
    context_len = seq_len - query_len
    fine, coarse = unit_roundoff(torch.float32), unit_roundoff(problem.weight_dtype)
    output, bound = torch.zeros_like(q), torch.zeros_like(q)
    for i in range(query_len):
        visible = torch.arange(first_visible(problem, i, context_len), context_len + i + 1)
        keys, values = k[visible], v[visible]
        logits = problem.scale * keys @ q[i]
        delta = (problem.head_size + 4) * fine * problem.scale * keys.abs() @ q[i].abs()
        if problem.softcap:
            logits = problem.softcap * torch.tanh(logits / problem.softcap)
            delta = delta + TANH_UNITS * fine * logits.abs()
        size = logits.abs()
        relative = visible - context_len
        if inputs.alibi_slopes is not None:
            bias = inputs.alibi_slopes[head].double() * relative
            logits, size = logits + bias, size + bias.abs()
        if inputs.qq_bias is not None:
            bias = torch.zeros_like(logits)
            named = (relative >= 0) & (relative < inputs.qq_bias.shape[1])
            bias[named] = inputs.qq_bias[i, relative[named]].double()
            logits, size = logits + bias, size + bias.abs().nan_to_num(posinf=0.0)
        top = logits.max()
        if inputs.sinks is not None:
            top = torch.maximum(top, inputs.sinks[head].double())
        weights = torch.exp(logits - top)
        total = weights.sum()
        if inputs.sinks is not None:
            total = total + torch.exp(inputs.sinks[head].double() - top)
        weights = weights / total
        delta = delta + fine * (8 * size + 2 * (logits - top).abs().nan_to_num(posinf=0.0) + 2 * top.abs() + 8)
        output[i] = weights @ values
        moved = (weights * delta) @ (values - output[i]).abs()
        rounded = (weights @ values.abs()) * (coarse + (len(visible) + 8) * fine)
        lost = underflow(problem.weight_dtype) * values.abs().sum(0)
        bound[i] = 2 * moved + rounded + lost + output[i].abs() * (len(visible) + 12) * fine
        bound[i] += delta.max() * output[i].abs() if inputs.sinks is not None else 0.0
    return output, bound


def reference(problem: Problem, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """(value, bound), float64 [num_tokens, num_query_heads, head_size]."""
    value = torch.empty(problem.num_tokens, problem.num_query_heads, problem.head_size, dtype=torch.float64)
    bound = torch.empty_like(value)
    group = problem.num_query_heads // problem.num_kv_heads
    q = inputs.q.double() * (float(torch.tensor(problem.q_scale)) if problem.quantized_q else 1.0)
    start = 0
    for i, (query_len, context_len) in enumerate(problem.sequences):
        seq_len = query_len + context_len
        rows = slice(start, start + query_len)
        start += query_len
        if query_len == 0:
            continue
        keys = gather(problem, inputs.k, inputs.true_block_table[i], seq_len, problem.k_scale)
        values = gather(problem, inputs.v, inputs.true_block_table[i], seq_len, problem.v_scale)
        for head in range(problem.num_query_heads):
            kv_head = head // group
            value[rows, head], bound[rows, head] = attend_head(
                problem, inputs, head, q[rows, head], keys[:, kv_head], values[:, kv_head]
            )
    return stored_output(problem, inputs.out.dtype, value, bound)


def stored_output(
    problem: Problem, dtype: torch.dtype, value: torch.Tensor, bound: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(value, bound) of the output after its last step: scale and clamp for fp8, rounding to `dtype`."""
    if dtype in FP8_DTYPES:
        scale, limit = float(torch.tensor(problem.output_scale)), torch.finfo(dtype).max
        value, bound = (value / scale).clamp(-limit, limit), bound / scale
    return value, bound + (value.abs() + bound) * unit_roundoff(dtype) + underflow(dtype)


def assert_agrees(problem: Problem, backend: InterpreterBackend) -> None:
    inputs = make_inputs(problem)
    with backend.running():
        actual = call(problem, inputs)
    expected, bound = reference(problem, inputs)
    ratio = ((actual.double() - expected).abs() / (bound + 1e-300)).nan_to_num(nan=math.inf)
    assert ratio.numel() == 0 or ratio.max() <= 1, f"{ratio.max():.3g} times the bound, row by row {ratio.amax((1, 2))}"
    untouched = inputs.out_storage.float()
    untouched[: problem.num_tokens, : problem.num_query_heads, : problem.head_size] = math.nan
    assert untouched.isnan().all(), "something outside of the tokens' rows was written"


EVERYTHING: dict[str, Any] = {"window": 11, "softcap": 2.0, "alibi": True, "qq_bias_cols": 6, "sink": 0.5}

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window_1": {"window": 1},
    "window_2": {"window": 2},
    "window_tile_minus_1": {"window": 15},
    "window_tile": {"window": 16},
    "window_tile_plus_1": {"window": 17},
    "window_wider_than_all": {"window": 1000},
    "window_int32_max": {"window": 2**31},
    "softcap_small": {"softcap": 0.7},
    "softcap_large": {"softcap": 3e6},
    "alibi": {"alibi": True},
    "alibi_sink": {"alibi": True, "sink": -1.0},
    "sink": {"sink": 0.0},
    "sink_high": {"sink": 60.0},
    "sink_low": {"sink": -200.0},
    "sink_off": {"sink": -math.inf},
    "qq_bias_narrow": {"qq_bias_cols": 4},
    "qq_bias_wide": {"qq_bias_cols": 14},
    "qq_bias_slice": {"qq_bias_cols": 9, "strided": True},
    "logits_far_below_zero": {"score_shift": 6.0, "window": 9},
    "fp8_e4m3": {"kv_dtype": E4M3, "k_scale": 0.25, "v_scale": 3.0},
    "fp8_e5m2": {"kv_dtype": E5M2, "k_scale": 1.5, "v_scale": 0.125},
    "strided": {"strided": True, "padding_rows": 2},
    "kv_outside": {"layout": "kv_outside"},
    "kv_inside": {"layout": "kv_inside"},
    "heads_first": {"layout": "heads_first"},
    "unlike_caches": {"layout": "unlike"},
    "everything": EVERYTHING,
    "everything_strided": EVERYTHING | {"strided": True, "layout": "unlike", "padding_rows": 3},
}

SHAPES: dict[str, dict[str, Any]] = {
    "one_token": {"sequences": ((1, 0),)},
    "decode": {"sequences": ((1, 0), (1, 15), (1, 16), (1, 17), (1, 63))},
    "block_q_exactly": {"sequences": ((8, 0), (16, 3), (8, 8))},
    "block_q_around": {"sequences": ((7, 9), (9, 7), (15, 1), (17, 0))},
    "empty_first": {"sequences": ((0, 0), (3, 2))},
    "empty_last": {"sequences": ((3, 2), (0, 0))},
    "empty_between": {"sequences": ((3, 2), (0, 0), (0, 9), (2, 0), (0, 33), (4, 1))},
    "only_empty": {"sequences": ((0, 0), (0, 7))},
    "many_of_one": {"sequences": ((1, 0),) * 9 + ((0, 0),) + ((1, 1),) * 8},
    "prefill_rows_64": {"sequences": ((40, 0), (33, 5)), "num_query_heads": 2, "num_kv_heads": 1},
    "padding_rows": {"sequences": ((3, 2), (9, 0)), "padding_rows": 21},
    "head_size_1": {"head_size": 1},
    "head_size_33": {"head_size": 33},
    "head_size_80": {"head_size": 80},
    "head_size_256": {"head_size": 256, "sequences": ((2, 20),)},
    "group_3": {"num_query_heads": 6},
    "group_5": {"num_query_heads": 5, "num_kv_heads": 1},
    "group_7": {"num_query_heads": 14},
    "group_17": {"num_query_heads": 34, "sequences": ((3, 5), (1, 30))},
    "group_64": {"num_query_heads": 64, "num_kv_heads": 1, "sequences": ((2, 17), (1, 1))},
    "page_1": {"block_size": 1},
    "page_24": {"block_size": 24},
    "page_31": {"block_size": 31},
    "page_544": {"block_size": 544},
    "tile_64": {"tile_size": 64},
    "defaults": {"tile_size": None, "num_segments": None},
    "default_decode": {"sequences": ((1, 90), (1, 3)), "tile_size": None, "num_segments": None},
}


HALF_SCALES = {"q_scale": 0.5, "k_scale": 1.7, "v_scale": 0.3}

DTYPES: dict[str, dict[str, Any]] = {
    "bf16": {"q_dtype": torch.bfloat16, "kv_dtype": torch.bfloat16},
    "bf16_to_fp32": {"q_dtype": torch.bfloat16, "kv_dtype": torch.bfloat16, "out_dtype": torch.float32},
    "bf16_fp8_cache": {"q_dtype": torch.bfloat16, "kv_dtype": E4M3} | HALF_SCALES,
    "fp32_to_fp16": {"out_dtype": torch.float16},
    "fp8_q": {"q_dtype": E4M3, "kv_dtype": E4M3, "out_dtype": torch.bfloat16, "tile_size": 32} | HALF_SCALES,
    "fp8_q_other_cache": {"q_dtype": E5M2, "kv_dtype": E4M3, "out_dtype": torch.float16, "tile_size": 32} | HALF_SCALES,
    "fp8_output": {"out_dtype": E4M3, "output_scale": 0.01},
    "fp8_output_clamped": {"out_dtype": E4M3, "output_scale": 0.001},
    "fp8_output_e5m2": {"q_dtype": torch.float16, "kv_dtype": E5M2, "out_dtype": E5M2, "output_scale": 3.0},
    "fp8_everything": {"q_dtype": E5M2, "kv_dtype": E5M2, "out_dtype": E4M3, "tile_size": 32} | HALF_SCALES,
}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("num_segments", [0, 3], ids=["2d", "3d"])
@pytest.mark.parametrize("features", [{}, EVERYTHING], ids=["plain", "everything"])
def test_dtypes_agree_with_reference(
    name: str, num_segments: int, features: dict[str, Any], interpreter: InterpreterBackend
) -> None:
    assert_agrees(dataclasses.replace(Problem(), **(DTYPES[name] | features), num_segments=num_segments), interpreter)


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize(
    ("num_segments", "q_dtype"), [(0, torch.float16), (3, torch.float32)], ids=["2d-fp16", "3d-fp32"]
)
def test_features_agree_with_reference(
    name: str, num_segments: int, q_dtype: torch.dtype, interpreter: InterpreterBackend
) -> None:
    changes: dict[str, Any] = {"q_dtype": q_dtype, "kv_dtype": q_dtype, "num_segments": num_segments} | FEATURES[name]
    assert_agrees(Problem(**changes), interpreter)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("features", [{}, EVERYTHING], ids=["plain", "everything"])
def test_shapes_agree_with_reference(name: str, features: dict[str, Any], interpreter: InterpreterBackend) -> None:
    assert_agrees(dataclasses.replace(Problem(), **(features | SHAPES[name])), interpreter)


@pytest.mark.parametrize("num_segments", [1, 2, 5, 8, 40])
@pytest.mark.parametrize("window", [NO_WINDOW, 20])
def test_any_number_of_segments_agrees_with_reference(
    num_segments: int, window: int, interpreter: InterpreterBackend
) -> None:
    sequences = ((1, 15), (4, 60), (1, 95))
    problem = Problem(sequences=sequences, num_query_heads=2, num_kv_heads=1, num_segments=num_segments)
    assert_agrees(dataclasses.replace(problem, window=window, sink=0.3), interpreter)
