"""Calls of the families over split caches, with a plain float64 reference and the oracle's bound.

Every case is poisoned: cache slots that the family may not read hold NaN, including new tokens if they come in dense
tensors; block-table entries past the last page and before the window point past the end of the cache (guard pages full
of NaN); padding rows of queries and new tokens hold NaN; the output and the gaps between its rows start as NaN. In the
simulator, a read past a tensor or of uninitialised memory also fails a case.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fuzz_attn.backends.backend import Backend
from fuzz_attn.case import families
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.kernels.chunked_prefill import chunked_prefill_paged_decode
from fuzz_attn.kernels.common.contract import FP8_DTYPES
from fuzz_attn.kernels.context_attention import context_attention_fwd
from fuzz_attn.kernels.paged_attention import paged_attention_decode
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.targets.loading import load_target

GUARD_PAGES = 3

ORACLE_SHARE = 0.01
"""Share of its bound by which the oracle's float64 value may be wrong, as `tests/oracle/test_exact_value.py` checks."""

Family = Literal["decode", "filtered", "context", "skipping", "chunked"]
FAMILIES_OF_CASES: dict[Family, families.Family] = {
    "decode": "paged",
    "filtered": "paged",
    "context": "context",
    "skipping": "context",
    "chunked": "chunked",
}


@dataclass(frozen=True)
class Problem:
    """One call of a launcher, as plain data."""

    family: Family = "filtered"
    sequences: tuple[tuple[int, int], ...] = ((2, 7), (1, 40), (0, 9), (6, 20), (1, 0))  # (query_len, context_len)
    num_query_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 24
    block_size: int = 5
    x: int = 8
    window: int = 0
    alibi: bool = False
    sink: float | None = None
    q_dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    bytes_named: str | None = None
    out_dtype: torch.dtype | None = None
    output_scale: float = 1.0
    k_scale: float | None = 1.0
    v_scale: float | None = 1.0
    sm_scale: float | None = None
    layout: str = "apart"
    padding_rows: int = 0
    strided: bool = False
    score_shift: float = 0.0
    tile_size: int | None = 16

    @property
    def scale(self) -> float:
        """The softmax scale as the kernel gets it, in float32."""
        return float(torch.tensor(self.head_size**-0.5 if self.sm_scale is None else self.sm_scale))

    @property
    def stored_dtype(self) -> torch.dtype:
        return self.kv_dtype or self.q_dtype

    @property
    def query_lens(self) -> list[int]:
        return [query_len for query_len, _ in self.sequences]

    @property
    def num_tokens(self) -> int:
        return len(self.sequences) if self.family == "decode" else sum(self.query_lens)

    @property
    def starts(self) -> list[int]:
        """Where each sequence's tokens begin; in an unfiltered decode an empty sequence has a row too."""
        if self.family == "decode":
            return list(range(len(self.sequences)))
        return [sum(self.query_lens[:i]) for i in range(len(self.sequences))]

    def answers(self, query_len: int) -> bool:
        """Whether the family writes the rows of a sequence."""
        if self.family in ("decode", "filtered"):
            return query_len == 1
        return query_len > (1 if self.family == "skipping" else 0)

    def reads_new_tokens(self, query_len: int) -> bool:
        """Whether the family reads the new keys of a sequence from the dense tensors instead of the cache."""
        if self.family in ("decode", "filtered"):
            return False
        return query_len > 1 or (query_len == 1 and self.family == "context")

    def cached_keys(self, query_len: int, context_len: int) -> range:
        """The keys that the family may read from the cache."""
        if not self.answers(query_len):
            return range(0)
        first = max(0, context_len - self.window + 1) if self.window else 0
        return range(first, context_len + (0 if self.reads_new_tokens(query_len) else query_len))


@dataclass
class Inputs:
    """The tensors of a problem; `out_storage` is what `out` is a view of."""

    q: torch.Tensor
    out: torch.Tensor
    out_storage: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    true_block_table: torch.Tensor
    new_keys: torch.Tensor
    new_values: torch.Tensor
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    keys: list[torch.Tensor]  # [seq_len, num_kv_heads, head_size] float64, after dequantisation
    values: list[torch.Tensor]


def make_caches(problem: Problem, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Split caches full of NaN, in one of the layouts that engines allocate; guard pages follow."""
    pages, heads, size, block = num_blocks + GUARD_PAGES, problem.num_kv_heads, problem.head_size, problem.block_size
    chunks, dtype = size // problem.x, problem.stored_dtype
    if problem.layout == "one_allocation":
        both = torch.empty(2, pages, block * heads * size, dtype=dtype)
        keys, values = both[0].view(pages, heads, chunks, block, problem.x), both[1].view(pages, heads, size, block)
    elif problem.layout == "pages_pair_up":
        both = torch.empty(pages, 2, block * heads * size, dtype=dtype)
        keys, values = both[:, 0].view(pages, heads, chunks, block, -1), both[:, 1].view(pages, heads, size, block)
    elif problem.layout == "sliced":
        keys = torch.empty(pages, heads + 1, chunks + 2, block + 1, problem.x + 3, dtype=dtype)
        keys = keys[:, 1:, 1 : chunks + 1, 1:, 2 : problem.x + 2]
        values = torch.empty(pages, heads + 2, size + 1, block + 2, dtype=dtype)[:, :heads, 1:, 1 : block + 1]
    elif problem.layout == "heads_outside":
        keys = torch.empty(heads, pages, block, chunks, problem.x, dtype=dtype).permute(1, 0, 3, 2, 4)
        values = torch.empty(heads, size, pages, block, dtype=dtype).permute(2, 0, 1, 3)
    else:
        keys = torch.empty(pages, heads, chunks, block, problem.x, dtype=dtype)
        values = torch.empty(pages, heads, size, block, dtype=dtype)
    for cache in (keys, values):
        cache.copy_(torch.full(cache.shape, math.nan))
    return keys[:num_blocks], values[:num_blocks]


def make_rows(problem: Problem, fill: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(view, storage): `fill` and NaN padding rows, with gaps in both leading dimensions if strided."""
    rows, heads, head_size = fill.shape
    extra = (1, 5) if problem.strided else (0, 0)
    padded = rows + problem.padding_rows
    storage = torch.full((padded + 1, heads + extra[0], head_size + extra[1]), math.nan).to(fill.dtype)
    view = storage[:padded, :heads, :head_size]
    view[:rows].copy_(fill)
    return view, storage


def dequantized(problem: Problem, stored: torch.Tensor, scale: float | None) -> torch.Tensor:
    """The float64 values of a stored tile in a dot product, rounded as the contract defines."""
    if problem.stored_dtype not in FP8_DTYPES:
        return stored.double()
    return (stored.float() * torch.tensor(1.0 if scale is None else scale)).to(problem.q_dtype).double()


def make_inputs(problem: Problem, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    heads, kv_heads, size = problem.num_query_heads, problem.num_kv_heads, problem.head_size

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    seq_lens = [query_len + context_len for query_len, context_len in problem.sequences]
    pages = [-(-seq_len // problem.block_size) for seq_len in seq_lens]
    num_blocks, width = sum(pages) + 2, max(pages, default=0) + 2
    key_cache, value_cache = make_caches(problem, num_blocks)
    shuffled = torch.randperm(num_blocks, generator=generator).tolist()
    shape = (len(seq_lens), width)
    block_table = num_blocks + torch.randint(GUARD_PAGES, shape, generator=generator, dtype=torch.int32)
    true_block_table = block_table.clone()
    keys, values = [], []
    new_keys, new_values = torch.full((2, problem.num_tokens, kv_heads, size), math.nan).to(problem.q_dtype)
    for i, (query_len, context_len) in enumerate(problem.sequences):
        owned = [shuffled.pop() for _ in range(pages[i])]
        true_block_table[i, : pages[i]] = torch.tensor(owned, dtype=torch.int32)
        k = (normal(seq_lens[i], kv_heads, size) + problem.score_shift).to(problem.stored_dtype)
        v = normal(seq_lens[i], kv_heads, size).to(problem.stored_dtype)
        for j in problem.cached_keys(query_len, context_len):
            page, slot = owned[j // problem.block_size], j % problem.block_size
            block_table[i, j // problem.block_size] = page
            key_cache[page, :, :, slot] = k[j].view(kv_heads, size // problem.x, problem.x)
            value_cache[page, :, :, slot] = v[j]
        keys.append(dequantized(problem, k, problem.k_scale))
        values.append(dequantized(problem, v, problem.v_scale))
        if problem.reads_new_tokens(query_len):
            rows = slice(problem.starts[i], problem.starts[i] + query_len)
            new_keys[rows] = (normal(query_len, kv_heads, size) + problem.score_shift).to(problem.q_dtype)
            new_values[rows] = normal(query_len, kv_heads, size).to(problem.q_dtype)
            keys[i][context_len:] = new_keys[rows]
            values[i][context_len:] = new_values[rows]
    queries = normal(problem.num_tokens, heads, size) - problem.score_shift
    q, _ = make_rows(problem, queries.to(problem.q_dtype))
    out, out_storage = make_rows(problem, torch.full(queries.shape, math.nan).to(problem.out_dtype or problem.q_dtype))
    if problem.bytes_named is not None:
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    return Inputs(
        q=q,
        out=out,
        out_storage=out_storage,
        key_cache=key_cache,
        value_cache=value_cache,
        query_start_loc=torch.tensor([0, *problem.query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_table=block_table,
        true_block_table=true_block_table,
        new_keys=make_rows(problem, new_keys)[0],
        new_values=make_rows(problem, new_values)[0],
        alibi_slopes=torch.linspace(-0.3, 0.7, heads) if problem.alibi else None,
        sinks=normal(heads).add(problem.sink).to(problem.q_dtype) if problem.sink is not None else None,
        keys=keys,
        values=values,
    )


def one(value: float | None) -> torch.Tensor | None:
    return None if value is None else torch.tensor([value])


def output_scale(problem: Problem, inputs: Inputs) -> torch.Tensor | None:
    return one(problem.output_scale) if inputs.out.dtype in FP8_DTYPES else None


def call_decode(problem: Problem, inputs: Inputs) -> None:
    filtered = problem.family == "filtered"
    paged_attention_decode(
        inputs.q,
        inputs.out,
        inputs.key_cache,
        inputs.value_cache,
        inputs.block_table,
        inputs.query_start_loc if filtered else None,
        inputs.seq_lens,
        one(problem.k_scale),
        one(problem.v_scale),
        alibi_slopes=inputs.alibi_slopes,
        sliding_window=problem.window or None,
        sm_scale=problem.sm_scale,
        output_scale=output_scale(problem, inputs),
        sinks=inputs.sinks,
        kv_cache_dtype=problem.bytes_named or "auto",
        filter_by_query_len=filtered,
        tile_size=problem.tile_size,
    )


def call_with_new_tokens(launch: Callable[..., None], problem: Problem, inputs: Inputs, **options: Any) -> None:
    """Call a launcher that takes new tokens in dense tensors; these launchers differ only in some names."""
    launch(
        inputs.q,
        inputs.new_keys,
        inputs.new_values,
        inputs.out,
        problem.bytes_named or "auto",
        inputs.key_cache,
        inputs.value_cache,
        inputs.block_table,
        inputs.query_start_loc,
        inputs.seq_lens,
        int(inputs.seq_lens.max()) if len(inputs.seq_lens) else 0,
        max(problem.query_lens, default=0),
        one(problem.k_scale),
        one(problem.v_scale),
        alibi_slopes=inputs.alibi_slopes,
        sm_scale=problem.sm_scale,
        sinks=inputs.sinks,
        tile_size=problem.tile_size,
        **options,
    )


def call_context(problem: Problem, inputs: Inputs) -> None:
    call_with_new_tokens(
        context_attention_fwd,
        problem,
        inputs,
        sliding_window=problem.window,
        skip_decode=problem.family == "skipping",
        fp8_out_scale=output_scale(problem, inputs),
    )


def call_chunked(problem: Problem, inputs: Inputs) -> None:
    call_with_new_tokens(
        chunked_prefill_paged_decode,
        problem,
        inputs,
        sliding_window=problem.window or -1,
        output_scale=output_scale(problem, inputs),
    )


CALLS: dict[Family, Callable[[Problem, Inputs], None]] = {
    "decode": call_decode,
    "filtered": call_decode,
    "context": call_context,
    "skipping": call_context,
    "chunked": call_chunked,
}


def attend_head(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: float, sink: float
) -> torch.Tensor:
    """The output of one head of one sequence by the definition, float64 [query_len, head_size]."""
    query_len, seq_len = q.shape[0], k.shape[0]
    context_len = seq_len - query_len
    position, key = context_len + torch.arange(query_len)[:, None], torch.arange(seq_len)[None, :]
    visible = (key <= position) & ((position - key < problem.window) if problem.window else True)
    logits = problem.scale * q @ k.T + slope * (key - context_len).double()
    logits = logits.masked_fill(~visible, -math.inf)
    top = logits.amax(1, keepdim=True).clamp(min=sink)
    weights = torch.exp(logits - top)
    return weights / (weights.sum(1, keepdim=True) + torch.exp(sink - top)) @ v


def reference(problem: Problem, inputs: Inputs) -> torch.Tensor:
    """The exact output, float64 like the tokens' rows; NaN in the rows that must not be written."""
    value = torch.full((problem.num_tokens, problem.num_query_heads, problem.head_size), math.nan).double()
    group = problem.num_query_heads // problem.num_kv_heads
    for i, (query_len, _) in enumerate(problem.sequences):
        if not problem.answers(query_len):
            continue
        rows = slice(problem.starts[i], problem.starts[i] + query_len)
        for head in range(problem.num_query_heads):
            value[rows, head] = attend_head(
                problem,
                inputs.q[rows, head].double(),
                inputs.keys[i][:, head // group],
                inputs.values[i][:, head // group],
                0.0 if inputs.alibi_slopes is None else float(inputs.alibi_slopes[head]),
                -math.inf if inputs.sinks is None else float(inputs.sinks[head]),
            )
    dtype = inputs.out.dtype
    if dtype in FP8_DTYPES:
        limit = torch.finfo(dtype).max
        value = (value / float(torch.tensor(problem.output_scale))).clamp(-limit, limit)
    return value


def oracle(problem: Problem, inputs: Inputs) -> Reference:
    """What the oracle derives for this call: the bound is the tolerance, for which no constant is chosen here."""
    query_lens = problem.query_lens
    if problem.family == "decode":
        query_lens = [1] * len(query_lens)  # an empty sequence has a row too, which stays unwritten
    tensors = AttentionTensors(
        query=inputs.q,
        key_cache=inputs.key_cache,
        value_cache=inputs.value_cache,
        outputs={"out": OutputTensor(inputs.out, poison=0)},
        query_start_loc=inputs.query_start_loc,
        seq_lens=inputs.seq_lens,
        block_table=inputs.true_block_table,
        query_lens=tuple(query_lens),
        context_lens=tuple(context_len for _, context_len in problem.sequences),
        softmax_scale=problem.scale,
        window=problem.window,
        k_scale=one(problem.k_scale) if problem.stored_dtype in FP8_DTYPES else None,
        v_scale=one(problem.v_scale) if problem.stored_dtype in FP8_DTYPES else None,
        out_scale=output_scale(problem, inputs),
        alibi_slopes=inputs.alibi_slopes,
        sinks=inputs.sinks,
        new_keys=inputs.new_keys,
        new_values=inputs.new_values,
        family=FAMILIES_OF_CASES[problem.family],
        kv_dtype=problem.stored_dtype,
        answers=tuple(problem.answers(query_len) for query_len in problem.query_lens),
        reads_packed=tuple(problem.reads_new_tokens(query_len) for query_len in problem.query_lens),
    )
    return attend(tensors, load_target(tensors.family).rounding_model)


def assert_within(actual: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> None:
    assert bound.isfinite().all(), "a bound that allows everything checks nothing"
    ratio = ((actual - expected).abs() / bound).nan_to_num(nan=math.inf)
    assert (ratio <= 1).all(), f"{ratio.max():.3g} times the bound"


def assert_agrees(problem: Problem, backend: Backend) -> None:
    inputs = make_inputs(problem)
    with backend.running() as watch:
        CALLS[problem.family](problem, inputs)
    assert not watch.observations
    expected, derived = reference(problem, inputs), oracle(problem, inputs)
    actual = inputs.out[: problem.num_tokens].double()
    written = ~expected.isnan()
    assert_within(actual[written], expected[written], derived["out"].bound[written])
    assert_within(derived["out"].value[written], expected[written], ORACLE_SHARE * derived["out"].bound[written])
    storage = inputs.out_storage.float()
    storage[: problem.num_tokens, : problem.num_query_heads, : problem.head_size][written] = math.nan
    assert storage.isnan().all(), "rows of other tokens were written"
