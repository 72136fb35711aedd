"""Our unified attention in the simulator, against the oracle and against Triton's interpreter, on drawn inputs."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.kernels.unified_attention import unified_attention
from fuzz_attn.oracle.reference import Reference, attend
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator
from fuzz_attn.targets.loading import load_target

DRAWN_CASES = int(os.environ.get("FUZZ_ATTN_SIMULATOR_CASES", "20"))
"""How many inputs are drawn; 2,000 before a release."""

SIMULATOR = Simulator()
HEADS = [(1, 1), (2, 1), (4, 2), (3, 1), (8, 2), (5, 1), (17, 1)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]


@dataclass(frozen=True)
class Shape:
    """What an input is made of; every field is drawn by `_random_shape`."""

    seed: int
    sequences: tuple[tuple[int, int], ...]
    heads: tuple[int, int]
    head_size: int
    page: int
    dtype: torch.dtype
    cache_dtype: torch.dtype
    window: int
    softcap: float
    alibi: bool
    bias: bool
    sinks: bool
    fp8_output: bool
    segments: int | None
    strided: bool


def _random_shape(seed: int) -> Shape:
    """A shape with lengths up to some 40 tokens; empty sequences, every dtype and every feature occur."""
    draw = random.Random(seed)
    decode = draw.random() < 0.3
    sequences = tuple(
        (draw.choice([0, 1] if decode else [0, 1, 1, 2, 3, 5, 8, 17]), draw.choice([0, 1, 3, 7, 15, 16, 23, 40]))
        for _ in range(draw.randint(1, 4))
    )
    dtype = draw.choice(DTYPES)
    fp8_cache = draw.random() < 0.25
    return Shape(
        seed=seed,
        sequences=sequences,
        heads=draw.choice(HEADS),
        head_size=draw.choice([16, 24, 32, 64, 80]),
        page=draw.choice([1, 8, 16, 24, 32]),
        dtype=dtype,
        cache_dtype=draw.choice(FP8) if fp8_cache else dtype,
        window=draw.choice([-1, -1, 0, 1, 7, 16]),
        softcap=draw.choice([0.0, 0.0, 1.5, 30.0]),
        alibi=draw.random() < 0.3,
        bias=draw.random() < 0.25,
        sinks=draw.random() < 0.3,
        fp8_output=draw.random() < 0.2,
        segments=draw.choice([None, 0, 0, 1, 3]),
        strided=draw.random() < 0.3,
    )


def _values(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator)


def _cache(generator: torch.Generator, shape: Shape, blocks: int, strided: bool) -> tuple[torch.Tensor, torch.Tensor]:
    size = (
        (blocks, 2, shape.page, shape.heads[1], shape.head_size)
        if strided
        else (2, blocks, shape.page, shape.heads[1], shape.head_size)
    )
    both = _values(generator, *size).to(shape.cache_dtype)
    return (both[:, 0], both[:, 1]) if strided else (both[0], both[1])


def attention_inputs(shape: Shape) -> dict[str, Any]:
    """Keyword arguments of `unified_attention` for a shape; pages are shuffled, and table entries past the last
    are absurd."""
    generator = torch.Generator().manual_seed(shape.seed)
    queries = [query for query, _ in shape.sequences]
    lengths = [query + context for query, context in shape.sequences]
    pages = [-(-length // shape.page) for length in lengths]
    order = torch.randperm(sum(pages) + 2, generator=generator).tolist()
    table = torch.full((len(lengths), max([*pages, 1]) + 1), 2**31 - 1, dtype=torch.int32)
    for row, count in enumerate(pages):
        for column in range(count):
            table[row, column] = order.pop()
    k, v = _cache(generator, shape, sum(pages) + 2, shape.strided)
    tokens = sum(queries)
    width = shape.head_size * 2 if shape.strided else shape.head_size
    q = _values(generator, tokens, shape.heads[0], width)[:, :, : shape.head_size].to(shape.dtype)
    if shape.strided:
        q = _values(generator, tokens, shape.heads[0], width).to(shape.dtype)[:, :, : shape.head_size]
    out_dtype = torch.float8_e4m3fn if shape.fp8_output else shape.dtype
    heads = shape.heads[0]
    one = torch.ones(1)
    fp8 = shape.cache_dtype in FP8
    return {
        "q": q,
        "k": k,
        "v": v,
        "out": torch.zeros(tokens + 1, heads, shape.head_size).to(out_dtype),
        "cu_seqlens_q": torch.tensor([0, *queries], dtype=torch.int32).cumsum(0).to(torch.int32),
        "max_seqlen_q": max(queries),
        "seqused_k": torch.tensor(lengths, dtype=torch.int32),
        "max_seqlen_k": max(lengths),
        "softmax_scale": shape.head_size**-0.5,
        "causal": True,
        "window_size": (shape.window, 0) if shape.window >= 0 else (-1, -1),
        "block_table": table,
        "softcap": shape.softcap,
        "q_descale": None,
        "k_descale": one * 0.7 if fp8 else None,
        "v_descale": one * 1.3 if fp8 else None,
        "alibi_slopes": _values(generator, heads) if shape.alibi else None,
        "qq_bias": _values(generator, max([*queries, 1]), max([*queries, 1])) if shape.bias else None,
        "sinks": _values(generator, heads) if shape.sinks else None,
        "output_scale": one * 0.5 if shape.fp8_output else None,
        "num_segments": shape.segments,
    }


def exact_attention_inputs(shape: Shape) -> dict[str, Any]:
    """As `attention_inputs`, with numbers for which every order of summation gives the same bits.

    Logits differ by nothing or by at least 128, so weights are 1 or 0, and values are small integers: all sums are
    integers. A soft cap leaves logits 30 apart; such weights vanish beside a sum of at least 1, which the key of the
    largest logit sees to. A sink may be the largest instead, so a case has one or the other.
    """
    keywords = attention_inputs(shape)
    generator = torch.Generator().manual_seed(shape.seed)

    def integers(name: str, low: int, high: int, factor: Any = 1) -> None:
        if keywords[name] is not None:
            drawn = torch.randint(low, high + 1, keywords[name].shape, generator=generator)
            keywords[name].copy_(drawn * factor)

    # One component of a query is not 0, so that many keys of a row share the largest logit.
    place = torch.randint(shape.head_size, keywords["q"].shape[:2], generator=generator)
    integers("q", -1, 1, torch.nn.functional.one_hot(place, shape.head_size))
    integers("k", -1, 1)
    integers("v", 1, 8)
    for name in ("alibi_slopes", "qq_bias", "sinks"):
        integers(name, -1, 1, 256)
    fp8 = keywords["k_descale"] is not None
    return keywords | {
        "softmax_scale": 256.0,
        "softcap": 30.0 if shape.softcap and not shape.sinks else 0.0,
        "k_descale": torch.tensor([0.5]) if fp8 else None,
        "v_descale": torch.tensor([2.0]) if fp8 else None,
    }


def _run_both(interpreter: Any, keywords: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs of unified attention by the simulator, which must find nothing, and by the interpreter."""
    copies = dict(keywords, out=keywords["out"].clone())
    with simulate(SIMULATOR) as session:
        unified_attention(**copies)
    assert not session.findings
    values, _ = interpreter.call("fuzz_attn.kernels.unified_attention:unified_attention", **keywords)
    return copies["out"], dict(zip(keywords, values, strict=True))["out"]


def _reference(shape: Shape, keywords: dict[str, Any]) -> Reference:
    """Return what the oracle says of these inputs."""
    window = keywords["window_size"][0] + 1
    queries, contexts = zip(*shape.sequences, strict=True)
    tensors = AttentionTensors(
        query=keywords["q"],
        key_cache=keywords["k"],
        value_cache=keywords["v"],
        outputs={"out": OutputTensor(keywords["out"], poison=0)},
        query_start_loc=keywords["cu_seqlens_q"],
        seq_lens=keywords["seqused_k"],
        block_table=keywords["block_table"],
        query_lens=queries,
        context_lens=contexts,
        softmax_scale=float(torch.tensor(keywords["softmax_scale"])),
        window=window,
        softcap=keywords["softcap"],
        k_scale=keywords["k_descale"],
        v_scale=keywords["v_descale"],
        out_scale=keywords["output_scale"],
        alibi_slopes=keywords["alibi_slopes"],
        qq_bias=keywords["qq_bias"],
        sinks=keywords["sinks"],
        kv_dtype=keywords["k"].dtype,
    )
    return attend(tensors, load_target("unified").rounding_model)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(DRAWN_CASES))
def test_unified_attention_on_drawn_cases(interpreter: Any, seed: int) -> None:
    shape = _random_shape(seed)
    keywords = attention_inputs(shape)
    reference = _reference(shape, keywords)
    for out in _run_both(interpreter, keywords):
        tokens = len(reference["out"].value)
        if tokens:
            error = (out[:tokens].double() - reference["out"].value).abs()
            assert (error <= reference["out"].bound).all(), float((error / reference["out"].bound).max())
        assert not out[tokens:].any()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(DRAWN_CASES))
def test_unified_attention_on_exact_cases(interpreter: Any, seed: int) -> None:
    """The numbers are such that every order of summation gives the same bits, so the two agree in each."""
    ours, theirs = _run_both(interpreter, exact_attention_inputs(_random_shape(seed)))
    assert torch.equal(ours.float(), theirs.float())
