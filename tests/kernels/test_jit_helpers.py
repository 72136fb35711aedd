"""The jit helpers one by one in Triton's interpreter: tanh, online softmax, search for a sequence, segments."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import itertools
import math
import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    raise RuntimeError("these tests run kernels on a CPU: set TRITON_INTERPRET=1 before Triton is imported")

import triton
import triton.language as tl

from fuzz_attn.kernels.common.rows import find_seq_idx
from fuzz_attn.kernels.common.scores import apply_softcap, tanh
from fuzz_attn.kernels.common.softmax import normalize, online_softmax_update
from fuzz_attn.kernels.unified.segments import segment_tiles
from fuzz_attn.oracle.rounding_model import EXP_UNITS
from fuzz_attn.oracle.roundings import UNIT

NEVER = -math.inf
SERIES_UNITS = 2
"""Units that tanh may lose below 1/4: the last addition 1, eight roundings of the tail, which is at most 1/48 of the
result, and 0.2 for the end of the series."""
TANH_UNITS = math.ceil(EXP_UNITS / math.sinh(0.5)) + 3
"""Units that tanh may lose elsewhere: the quotient multiplies the error of `exp(-2x)` by `1 / sinh(2x)`, most at 1/4;
the difference, the sum and the quotient are rounded. A GPU's approximate quotient loses more."""


@triton.jit
def tanh_kernel(x_ptr, y_ptr, N: tl.constexpr):
    index = tl.arange(0, N)
    tl.store(y_ptr + index, tanh(tl.load(x_ptr + index)))


@triton.jit
def softcap_kernel(x_ptr, y_ptr, softcap, N: tl.constexpr):
    index = tl.arange(0, N)
    tl.store(y_ptr + index, apply_softcap(tl.load(x_ptr + index), softcap))


@triton.jit
def softmax_kernel(scores_ptr, out_ptr, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr):
    row = tl.arange(0, ROWS)
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for tile in range(TILES):
        key = tile * TILE + tl.arange(0, TILE)
        scores = tl.load(scores_ptr + row[:, None] * (TILES * TILE) + key[None, :])
        row_max, row_sum, weights, alpha = online_softmax_update(scores, row_max, row_sum)
        # The value of key j is j.
        total = total * alpha + tl.sum(weights * key[None, :].to(tl.float32), axis=1)
    tl.store(out_ptr + row, normalize(total, row_sum))


@triton.jit
def search_kernel(starts_ptr, out_ptr, num_seqs, BLOCK_Q: tl.constexpr, USE_Q_BLOCKS: tl.constexpr):
    target = tl.program_id(0)
    tl.store(out_ptr + target, find_seq_idx(starts_ptr, target, num_seqs, BLOCK_Q, USE_Q_BLOCKS))


@triton.jit
def segments_kernel(out_ptr, first_tile, end_tile, NUM_SEGMENTS: tl.constexpr):
    segment = tl.program_id(0)
    begin, end = segment_tiles(first_tile, end_tile, segment, NUM_SEGMENTS)
    tl.store(out_ptr + 2 * segment, begin)
    tl.store(out_ptr + 2 * segment + 1, end)


def test_tanh_is_right_to_float32_from_tiny_to_infinite() -> None:
    exponents = torch.cat([torch.linspace(-40, 40, 2045), torch.linspace(-4, 1, 2048)]).double()
    magnitudes = torch.cat([torch.pow(2.0, exponents), torch.tensor([0.0, 0.25, math.inf])])
    x = torch.cat([magnitudes, -magnitudes]).float()
    y = torch.empty_like(x)
    tanh_kernel[(1,)](x, y, len(x))
    exact = torch.tanh(x.double())
    units = torch.where(x.abs() < 0.25, SERIES_UNITS, TANH_UNITS)
    assert ((y.double() - exact).abs() <= units * UNIT * exact.abs()).all()


@pytest.mark.parametrize("softcap", [1e-3, 1.0, 50.0, 1e6])
def test_softcap_neither_overflows_nor_loses_small_scores(softcap: float) -> None:
    x = torch.tensor([0.0, 1e-6, -1e-3, 1.0, -88.0, 89.0, 1e4, -1e30])
    y = torch.empty_like(x)
    softcap_kernel[(1,)](x, y, softcap, len(x))
    cap = torch.tensor(softcap).double()
    exact = cap * torch.tanh(x.double() / cap)
    # The division before and the product behind are one rounding each, neither of which tanh enlarges.
    assert ((y.double() - exact).abs() <= (TANH_UNITS + 2) * UNIT * exact.abs()).all()


def test_online_softmax_over_rows_that_see_keys_late_early_or_never() -> None:
    tiles = {
        "never": [[NEVER] * 4] * 3,
        "last tile only": [[NEVER] * 4, [NEVER] * 4, [-300.0, NEVER, -301.0, NEVER]],
        "first tile only": [[5.0, NEVER, NEVER, 4.0], [NEVER] * 4, [NEVER] * 4],
        "rising": [[0.0, 10.0, 20.0, 30.0], [200.0, 201.0, 199.0, 0.0], [203.0, NEVER, 202.5, 0.0]],
        "falling": [[300.0, 299.0, 290.0, 280.0], [10.0, 9.0, 8.0, 7.0], [-400.0] * 4],
        "far below": [[-1e30] * 4, [NEVER] * 4, [-1e30] * 4],
        "a hole": [[1.0, 2.0, 3.0, 4.0], [NEVER] * 4, [1.5, 2.5, 3.5, 4.5]],
        "equal": [[0.0] * 4] * 3,
    }
    scores = torch.tensor(list(tiles.values())).flatten(1)
    out = torch.full((len(tiles),), math.nan)
    softmax_kernel[(1,)](scores, out, len(tiles), 3, 4)
    values = torch.arange(12.0, dtype=torch.float64)
    shares = torch.softmax(scores.double(), dim=1).nan_to_num(nan=0.0)
    expected = shares @ values
    # A weight meets its own exponential and three rescalings, each with a product, and loses 3 units of its distance
    # from the top. Both sums have 12 terms; one has products, and then comes the quotient.
    distance = (scores.amax(1, keepdim=True) - scores).double().nan_to_num(nan=0.0, posinf=0.0)
    units = 4 * (EXP_UNITS + 1) + 3 * distance
    bound = (shares * units) @ values + expected * ((shares * units).sum(1) + 12 + 13 + 1)
    assert ((out.double() - expected).abs() <= UNIT / (1 - 2.0**-10) * bound).all()


@pytest.mark.parametrize("query_lens", [(1,), (3, 0, 0, 2), (0, 4), (4, 0), (0, 0, 0), (1,) * 9, (5, 1, 0, 7, 2)])
def test_every_token_finds_its_sequence(query_lens: tuple[int, ...]) -> None:
    starts = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32)
    owners = [i for i, query_len in enumerate(query_lens) for _ in range(query_len)]
    if owners:
        out = torch.full((len(owners),), -1, dtype=torch.int32)
        search_kernel[(len(owners),)](starts, out, len(query_lens), 4, False)
        assert out.tolist() == owners


@pytest.mark.parametrize("block_q", [1, 3, 4])
@pytest.mark.parametrize("query_lens", [(1,), (3, 0, 0, 2), (0, 4), (4, 0), (0, 0, 0), (1,) * 9, (5, 1, 0, 7, 2)])
def test_every_q_block_of_a_sequence_finds_it(query_lens: tuple[int, ...], block_q: int) -> None:
    starts = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32)
    num_blocks = sum(query_lens) // block_q + len(query_lens)
    out = torch.full((num_blocks,), -1, dtype=torch.int32)
    search_kernel[(num_blocks,)](starts, out, len(query_lens), block_q, True)
    for i, query_len in enumerate(query_lens):
        first = int(starts[i]) // block_q + i
        assert out[first : first + -(-query_len // block_q)].tolist() == [i] * -(-query_len // block_q)


@pytest.mark.parametrize("num_segments", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("tiles", [(0, 1), (0, 7), (5, 6), (5, 21), (3, 35)])
def test_segments_partition_the_tiles(tiles: tuple[int, int], num_segments: int) -> None:
    out = torch.empty(num_segments, 2, dtype=torch.int32)
    segments_kernel[(num_segments,)](out, *tiles, num_segments)
    covered = [tile for begin, end in out.tolist() for tile in range(begin, end)]
    assert covered == list(range(*tiles))
    assert out[0, 0] < out[0, 1], "the first segment holds the sink, so it must have tiles"
