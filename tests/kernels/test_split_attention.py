"""The families over split caches, in the simulator and in Triton's interpreter, against a plain float64 reference.

Every case is poisoned: cache slots that the family may not read hold NaN, including new tokens if they come in dense
tensors; block-table entries past the last page and before the window point past the end of the cache (guard pages full
of NaN); padding rows of queries and new tokens hold NaN; the output and the gaps between its rows start as NaN. In the
simulator, a read past a tensor or of uninitialised memory also fails a case.
"""

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("these tests run kernels on a CPU: set TRITON_INTERPRET=1 before Triton is imported")

from fuzz_attn.backends.backend import Backend
from fuzz_attn.backends.interpreter import InterpreterBackend
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.inputs.storage import with_large_offsets
from fuzz_attn.kernels.chunked_prefill import chunked_prefill_paged_decode
from fuzz_attn.kernels.common.contract import FP8_DTYPES
from fuzz_attn.kernels.context_attention import context_attention_fwd
from fuzz_attn.kernels.paged_attention import paged_attention_decode

GUARD_PAGES = 3
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
HALF, BRAIN = torch.float16, torch.bfloat16

Family = Literal["decode", "filtered", "context", "skipping", "chunked"]


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
    keys, values = [], []
    new_keys, new_values = torch.full((2, problem.num_tokens, kv_heads, size), math.nan).to(problem.q_dtype)
    for i, (query_len, context_len) in enumerate(problem.sequences):
        owned = [shuffled.pop() for _ in range(pages[i])]
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """(value, bound), float64 [query_len, head_size], of one head of one sequence, by the definition.

    The bound is of first order: errors of the logits move weight between the values, and weights,
    sums and the store are rounded.
    """
    query_len, seq_len = q.shape[0], k.shape[0]
    context_len = seq_len - query_len
    fine, coarse = torch.finfo(torch.float32).eps / 2, torch.finfo(problem.q_dtype).eps / 2
    scale = problem.head_size**-0.5 if problem.sm_scale is None else problem.sm_scale
    position, key = context_len + torch.arange(query_len)[:, None], torch.arange(seq_len)[None, :]
    visible = (key <= position) & ((position - key < problem.window) if problem.window else True)
    bias = slope * (key - context_len).double()
    logits = scale * q @ k.T + bias
    delta = (problem.head_size + 4) * fine * abs(scale) * q.abs() @ k.abs().T + 8 * fine * (logits.abs() + bias.abs())
    logits = logits.masked_fill(~visible, -math.inf)
    top = logits.amax(1, keepdim=True).clamp(min=sink)
    delta += fine * (2 * (logits - top).abs().masked_fill(~visible, 0.0) + 2 * top.abs() + 8)
    weights = torch.exp(logits - top)
    weights = weights / (weights.sum(1, keepdim=True) + torch.exp(sink - top))
    output, terms = weights @ v, visible.sum(1, keepdim=True) + 12
    moved = ((weights * delta)[:, :, None] * (v[None] - output[:, None]).abs()).sum(1)
    lost = torch.finfo(problem.q_dtype).tiny * coarse * (visible.double() @ v.abs())
    sink_moves = delta.masked_fill(~visible, 0.0).amax(1, keepdim=True) if math.isfinite(sink) else 0.0
    bound = (
        2 * moved + (weights @ v.abs()) * (coarse + terms * fine) + lost + output.abs() * (terms * fine + sink_moves)
    )
    return output, bound


def reference(problem: Problem, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """(value, bound), float64 like the tokens' rows of the output; NaN in the rows that must not be written."""
    value = torch.full((problem.num_tokens, problem.num_query_heads, problem.head_size), math.nan).double()
    bound = torch.zeros_like(value)
    group = problem.num_query_heads // problem.num_kv_heads
    for i, (query_len, _) in enumerate(problem.sequences):
        if not problem.answers(query_len):
            continue
        rows = slice(problem.starts[i], problem.starts[i] + query_len)
        for head in range(problem.num_query_heads):
            value[rows, head], bound[rows, head] = attend_head(
                problem,
                inputs.q[rows, head].double(),
                inputs.keys[i][:, head // group],
                inputs.values[i][:, head // group],
                0.0 if inputs.alibi_slopes is None else float(inputs.alibi_slopes[head]),
                -math.inf if inputs.sinks is None else float(inputs.sinks[head]),
            )
    dtype = inputs.out.dtype
    if dtype in FP8_DTYPES:
        scale, limit = float(torch.tensor(problem.output_scale)), torch.finfo(dtype).max
        value, bound = (value / scale).clamp(-limit, limit), bound / scale
    info = torch.finfo(dtype)
    return value, bound + (value.abs() + bound) * info.eps / 2 + info.tiny * info.eps / 2


def assert_agrees(problem: Problem, backend: Backend) -> None:
    inputs = make_inputs(problem)
    with backend.running() as watch:
        CALLS[problem.family](problem, inputs)
    assert not watch.observations
    expected, bound = reference(problem, inputs)
    actual = inputs.out[: problem.num_tokens].double()
    written = ~expected.isnan()
    ratio = ((actual - expected).abs() / (bound + 1e-300)).nan_to_num(nan=math.inf)[written]
    assert ratio.numel() == 0 or ratio.max() <= 1, f"{ratio.max():.3g} times the bound"
    storage = inputs.out_storage.float()
    storage[: problem.num_tokens, : problem.num_query_heads, : problem.head_size][written] = math.nan
    assert storage.isnan().all(), "rows of other tokens were written"


EVERYTHING: dict[str, Any] = {"window": 11, "alibi": True, "sink": 0.5}
DECODES = ((1, 0), (1, 15), (0, 0), (1, 16), (1, 17), (1, 63))

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window_1": {"window": 1},
    "window_2": {"window": 2},
    "window_tile_minus_1": {"window": 15},
    "window_tile": {"window": 16},
    "window_tile_plus_1": {"window": 17},
    "window_wider_than_all": {"window": 1000},
    "window_int32_max": {"window": 2**31},
    "alibi": {"alibi": True},
    "alibi_window": {"alibi": True, "window": 9},
    "alibi_sink": {"alibi": True, "sink": -1.0},
    "sink": {"sink": 0.0},
    "sink_high": {"sink": 60.0},
    "sink_low": {"sink": -200.0},
    "sink_off": {"sink": -math.inf},
    "own_scale": {"sm_scale": 0.71},
    "negative_scale": {"sm_scale": -0.3},
    "logits_far_below_zero": {"score_shift": 6.0, "window": 9},
    "strided": {"strided": True, "padding_rows": 2},
    "one_allocation": {"layout": "one_allocation"},
    "pages_pair_up": {"layout": "pages_pair_up"},
    "sliced_caches": {"layout": "sliced"},
    "heads_outside": {"layout": "heads_outside"},
    "everything": EVERYTHING,
    "everything_strided": EVERYTHING | {"strided": True, "layout": "sliced", "padding_rows": 3},
}

SHAPES: dict[str, dict[str, Any]] = {
    "decodes": {"sequences": DECODES},
    "one_token": {"sequences": ((1, 0),)},
    "empty_first": {"sequences": ((0, 0), (1, 2))},
    "empty_last": {"sequences": ((1, 2), (0, 0))},
    "empty_between": {"sequences": ((3, 2), (0, 0), (0, 9), (1, 0), (0, 33), (4, 1))},
    "only_empty": {"sequences": ((0, 0), (0, 7))},
    "no_sequences": {"sequences": ()},
    "many_of_one": {"sequences": ((1, 0),) * 9 + ((0, 0),) + ((1, 1),) * 8},
    "padding_rows": {"sequences": ((1, 2), (1, 20)), "padding_rows": 21},
    "block_of_rows_around": {"sequences": ((15, 3), (16, 0), (17, 33), (1, 5), (33, 16)), "num_query_heads": 2},
    "blocks_of_64_rows": {"sequences": ((65, 0), (64, 5), (1, 7), (63, 2)), "num_query_heads": 1, "num_kv_heads": 1},
    "long_context": {"sequences": ((2, 95), (1, 95), (5, 96))},
    "head_size_1": {"head_size": 1, "x": 1},
    "head_size_33": {"head_size": 33, "x": 11},
    "head_size_80": {"head_size": 80, "x": 16},
    "head_size_256": {"head_size": 256, "x": 4, "sequences": ((1, 20), (2, 3))},
    "x_1": {"x": 1},
    "x_3": {"x": 3},
    "x_whole_head": {"x": 24},
    "group_3": {"num_query_heads": 6},
    "group_5": {"num_query_heads": 5, "num_kv_heads": 1},
    "group_17": {"num_query_heads": 34, "sequences": ((3, 5), (1, 30))},
    "group_64": {"num_query_heads": 64, "num_kv_heads": 1, "sequences": ((1, 17), (1, 1))},
    "page_1": {"block_size": 1},
    "page_3": {"block_size": 3},
    "page_24": {"block_size": 24},
    "page_272": {"block_size": 272},
    "page_544": {"block_size": 544},
    "tile_64": {"tile_size": 64},
    "defaults": {"tile_size": None},
}

SCALES = {"k_scale": 1.7, "v_scale": 0.3}

DTYPES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp16": {"q_dtype": HALF},
    "bf16": {"q_dtype": BRAIN},
    "bf16_to_fp32": {"q_dtype": BRAIN, "out_dtype": torch.float32},
    "fp32_to_fp16": {"out_dtype": HALF},
    "bf16_e4m3": {"q_dtype": BRAIN, "kv_dtype": E4M3} | SCALES,
    "fp16_e5m2": {"q_dtype": HALF, "kv_dtype": E5M2} | SCALES,
    "fp32_e4m3": {"kv_dtype": E4M3} | SCALES,
    "no_scales": {"q_dtype": BRAIN, "kv_dtype": E4M3, "k_scale": None, "v_scale": None},
    "bytes_fp8": {"q_dtype": BRAIN, "kv_dtype": E4M3, "bytes_named": "fp8"} | SCALES,
    "bytes_e4m3": {"q_dtype": HALF, "kv_dtype": E4M3, "bytes_named": "fp8_e4m3", "layout": "sliced"} | SCALES,
    "bytes_e5m2": {"q_dtype": BRAIN, "kv_dtype": E5M2, "bytes_named": "fp8_e5m2", "x": 12} | SCALES,
    "scales_of_an_unquantised_cache": {"k_scale": math.nan, "v_scale": math.nan},
    "fp8_output": {"out_dtype": E4M3, "output_scale": 0.01},
    "fp8_output_clamped": {"out_dtype": E4M3, "output_scale": 0.001},
    "fp8_output_e5m2": {"q_dtype": HALF, "kv_dtype": E5M2, "out_dtype": E5M2, "output_scale": 3.0},
}


def for_family(problem: Problem, family: Family) -> Problem:
    """The same problem for another family; an unfiltered decode has no queries of several tokens."""
    if family == "decode":
        sequences = tuple(s for s in problem.sequences if s[0] == 1 or sum(s) == 0)
        problem = dataclasses.replace(problem, sequences=sequences)
    return dataclasses.replace(problem, family=family)


FAMILIES: tuple[Family, ...] = ("decode", "filtered", "context", "skipping", "chunked")
TABLES = (FEATURES, SHAPES, DTYPES)


def named(name: str, family: Family, features: dict[str, Any]) -> Problem:
    """The problem of that name in one of the tables, on top of `features`."""
    table = next(table for table in TABLES if name in table)
    return for_family(dataclasses.replace(Problem(), **(features | table[name])), family)


def test_no_name_is_in_two_tables() -> None:
    assert len(set().union(*TABLES)) == sum(len(table) for table in TABLES)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", FEATURES)
def test_features_agree_with_reference(name: str, family: Family) -> None:
    # The simulator also takes kernels that were decorated for the interpreter.
    assert_agrees(named(name, family, {}), SimulatorBackend())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [*SHAPES, *DTYPES])
@pytest.mark.parametrize("features", [{}, EVERYTHING], ids=["plain", "everything"])
def test_shapes_and_dtypes_agree_with_reference(name: str, features: dict[str, Any], family: Family) -> None:
    assert_agrees(named(name, family, features), SimulatorBackend())


@pytest.mark.parametrize("family", ["filtered", "context"])
@pytest.mark.parametrize("name", [*FEATURES, *SHAPES, *DTYPES])
def test_interpreter_agrees_with_reference(name: str, family: Family, interpreter: InterpreterBackend) -> None:
    assert_agrees(named(name, family, {} if name in FEATURES else EVERYTHING), interpreter)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["fp32", "bytes_e5m2"])
def test_pages_past_2_to_the_31_elements_give_the_same_bits(dtype: str, family: Family) -> None:
    problem = named(dtype, family, EVERYTHING)
    near, far = make_inputs(problem), make_inputs(problem)
    moved = 2**31 // near.value_cache[0].numel() + 1
    for name in ("key_cache", "value_cache"):
        cache = getattr(near, name).contiguous()
        setattr(far, name, *with_large_offsets((cache,), moved, cache[0].numel(), "cpu"))
    far.block_table += moved
    assert far.key_cache.stride(0) * moved > 2**31
    for inputs in (near, far):
        with SimulatorBackend().running() as watch:
            CALLS[family](problem, inputs)
        assert not watch.observations
    assert torch.equal(near.out_storage.view(torch.uint8), far.out_storage.view(torch.uint8))
    assert not near.out_storage.isnan().all()
