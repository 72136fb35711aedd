"""Calls of `unified_attention`, with a slow float64 reference, row by row by the definition, and the oracle's bound.

Every case is poisoned: cache slots that no query may see hold NaN, block-table entries past the last page and before
the window point past the end of the cache (guard pages full of NaN), and the output and the gaps between its rows start
as NaN. A test fails if an output differs from the reference by more than its bound.
"""

import math
from dataclasses import dataclass

import torch

from fuzz_attn.backends.backend import Backend
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.kernels.common.contract import FP8_DTYPES
from fuzz_attn.kernels.unified_attention import unified_attention
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.targets.loading import load_target

GUARD_PAGES = 3
NO_WINDOW = 0
ORACLE_SHARE = 0.01
"""Share of its bound by which the oracle's float64 value may be wrong, as `tests/oracle/test_exact_value.py` checks."""


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
        """The softmax scale as the kernel gets it, in float32."""
        return float(torch.tensor(self.head_size**-0.5))

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


def scale_of(tensor: torch.Tensor, value: float) -> torch.Tensor | None:
    """The scale of a tensor as a launcher takes it: None if it is not fp8."""
    return torch.tensor([value]) if tensor.dtype in FP8_DTYPES else None


def call(problem: Problem, inputs: Inputs) -> torch.Tensor:
    """Run the kernels; return the rows that belong to tokens."""
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
        scale_of(inputs.q, problem.q_scale),
        scale_of(inputs.k, problem.k_scale),
        scale_of(inputs.v, problem.v_scale),
        alibi_slopes=inputs.alibi_slopes,
        qq_bias=inputs.qq_bias,
        sinks=inputs.sinks,
        output_scale=scale_of(inputs.out, problem.output_scale),
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
) -> torch.Tensor:
    """The output of one head of one sequence, float64 [query_len, head_size], step by step."""
    query_len, seq_len = q.shape[0], k.shape[0]
    context_len = seq_len - query_len
    output = torch.zeros_like(q)
    for i in range(query_len):
        visible = torch.arange(first_visible(problem, i, context_len), context_len + i + 1)
        logits = problem.scale * k[visible] @ q[i]
        if problem.softcap:
            softcap = torch.tensor(problem.softcap).double()  # as the kernel gets it, in float32
            logits = softcap * torch.tanh(logits / softcap)
        relative = visible - context_len
        if inputs.alibi_slopes is not None:
            logits = logits + inputs.alibi_slopes[head].double() * relative
        if inputs.qq_bias is not None:
            named = (relative >= 0) & (relative < inputs.qq_bias.shape[1])
            logits[named] += inputs.qq_bias[i, relative[named]].double()
        if inputs.sinks is not None:
            logits = torch.cat([logits, inputs.sinks[head, None].double()])
        weights = torch.softmax(logits, 0)
        output[i] = weights[: len(visible)] @ v[visible]
    return output


def reference(problem: Problem, inputs: Inputs) -> torch.Tensor:
    """The exact output, float64 [num_tokens, num_query_heads, head_size]."""
    value = torch.empty(problem.num_tokens, problem.num_query_heads, problem.head_size, dtype=torch.float64)
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
            value[rows, head] = attend_head(
                problem, inputs, head, q[rows, head], keys[:, head // group], values[:, head // group]
            )
    return stored(problem, inputs.out.dtype, value)


def stored(problem: Problem, dtype: torch.dtype, value: torch.Tensor) -> torch.Tensor:
    """The output before its last rounding: fp8 is scaled and clamped."""
    if dtype not in FP8_DTYPES:
        return value
    limit = torch.finfo(dtype).max
    return (value / float(torch.tensor(problem.output_scale))).clamp(-limit, limit)


def oracle(problem: Problem, inputs: Inputs) -> Reference:
    """What the oracle derives for this call: the bound is the tolerance, for which no constant is chosen here."""
    tensors = AttentionTensors(
        query=inputs.q,
        key_cache=inputs.k,
        value_cache=inputs.v,
        outputs={"out": OutputTensor(inputs.out, poison=0)},
        query_start_loc=inputs.query_start_loc,
        seq_lens=inputs.seq_lens,
        block_table=inputs.block_table,
        query_lens=tuple(problem.query_lens),
        context_lens=tuple(context_len for _, context_len in problem.sequences),
        softmax_scale=problem.scale,
        window=problem.window,
        softcap=float(torch.tensor(problem.softcap)),
        alibi_slopes=inputs.alibi_slopes,
        qq_bias=inputs.qq_bias,
        sinks=inputs.sinks,
        kv_dtype=problem.kv_dtype,
        q_scale=scale_of(inputs.q, problem.q_scale),
        k_scale=scale_of(inputs.k, problem.k_scale),
        v_scale=scale_of(inputs.v, problem.v_scale),
        out_scale=scale_of(inputs.out, problem.output_scale),
    )
    return attend(tensors, load_target("unified").rounding_model)


def assert_within(actual: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> None:
    assert bound.isfinite().all(), "a bound that allows everything checks nothing"
    ratio = ((actual - expected).abs() / bound).nan_to_num(nan=math.inf)
    assert (ratio <= 1).all(), f"{ratio.max():.3g} times the bound, row by row {ratio.amax((1, 2))}"


def assert_agrees(problem: Problem, backend: Backend) -> None:
    inputs = make_inputs(problem)
    with backend.running() as watch:
        actual = call(problem, inputs)
    assert not watch.observations
    expected, derived = reference(problem, inputs), oracle(problem, inputs)
    assert_within(actual.double(), expected, derived["out"].bound)
    assert_within(derived["out"].value, expected, ORACLE_SHARE * derived["out"].bound)
    untouched = inputs.out_storage.float()
    untouched[: problem.num_tokens, : problem.num_query_heads, : problem.head_size] = math.nan
    assert untouched.isnan().all(), "something outside of the tokens' rows was written"
