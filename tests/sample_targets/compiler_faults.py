"""Right targets that Triton 3.6 compiles wrongly, and one whose fault only the threads of a GPU show.

Each computes attention with this project's kernel. Then a small kernel moves the output through memory in a way that
must not change it: as partial results of a split launch that are merged, or by threads that exchange values.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch
import triton
import triton.language as tl

from fuzz_attn.kernels.unified_attention import unified_attention

PARTS: Final = 128
"""Partial results of a row, equal ones, so that each counts and merging them is exact for halves."""
AROUND: Final = 2**24
"""Elements of memory before and behind the parts, so that a load of a wrong place does not break the GPU."""
MOST_ROWS: Final = 4096
"""Rows that are merged in one launch, whose parts take 270 MB."""
COLUMNS: Final = 128
"""Columns that one program merges. Rows are cut into so many and padded: with fewer no result is wrong."""
HALF: Final = 2
"""Bytes of the types whose rows are rewritten: a sum of up to 128 equal halves is exact in float32."""
LANES: Final = 512
"""Elements that the threads of one program exchange. The partner of each, counted from the end, is in another warp."""


@triton.jit
def merge_kernel(
    parts_ptr,  # [num_tokens, num_heads, PARTS, COLUMNS + 2], float32: the values, the maximum, the sum of each part
    out_ptr,  # [num_tokens, num_heads, COLUMNS], float32
    part_stride,
    token_stride,
    head_stride,
    out_token_stride,
    out_head_stride,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COMPARES_BROADCAST: tl.constexpr,
):
    """Merge the parts of one row, whose maxima and sums are to the base 2.

    Each of 64 threads holds 256 values. With the loads in this order, and masked, half of the results are wrong.
    """
    token, head = tl.program_id(1), tl.program_id(0)
    parts = tl.arange(0, PARTS)
    columns = tl.arange(0, COLUMNS)
    in_row = columns < COLUMNS
    values_at = token * token_stride + head * head_stride + parts[:, None] * part_stride + columns[None, :]
    states_at = token * token_stride + head * head_stride + part_stride * parts + COLUMNS  # [PARTS]
    maxima = tl.load(parts_ptr + states_at)
    sums = tl.load(parts_ptr + states_at + 1)
    is_live = maxima > -float("inf")
    mask = in_row[None, :] & (maxima[:, None] > -float("inf") if COMPARES_BROADCAST else is_live[:, None])
    values = tl.load(parts_ptr + values_at, mask=mask, other=0.0)  # [PARTS, COLUMNS]
    highest = tl.max(maxima, 0)
    weights = tl.exp2(maxima - highest)
    values = values * weights[:, None]
    sums = sums * weights
    merged = tl.sum(values, 0) / tl.sum(sums, 0)
    tl.store(out_ptr + token * out_token_stride + head * out_head_stride + columns, merged, mask=in_row)


@triton.jit
def exchange_kernel(
    values_ptr,  # [count], float32, changed in place
    scratch_ptr,  # [num_programs, LANES], float32
    count,
    LANES: tl.constexpr,
):
    """Let each thread store its element and read that of another warp, without the barrier that this needs."""
    first = tl.program_id(0) * LANES
    lanes = tl.arange(0, LANES)
    partners = LANES - 1 - lanes
    values = tl.load(values_ptr + first + lanes, mask=first + lanes < count, other=0.0)
    stored = tl.inline_asm_elementwise(
        "nanosleep.u32 $3; st.global.f32 [$1], $2; mov.f32 $0, $2;",
        "=f,l,f,r",
        [(scratch_ptr + first + lanes).to(tl.int64), values, lanes * 16],
        dtype=tl.float32,
        is_pure=False,
        pack=1,
    )
    read = tl.inline_asm_elementwise(
        "ld.volatile.global.f32 $0, [$1];",
        "=f,l,f",
        [(scratch_ptr + first + partners).to(tl.int64), stored],
        dtype=tl.float32,
        is_pure=False,
        pack=1,
    )
    tl.store(values_ptr + first + partners, read, mask=first + partners < count)


def _rewritten(rewrite: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., None]:
    """Return this project's launcher, whose output in halves is rewritten, as float32, by what must not change it."""

    @wraps(unified_attention)
    def variant(**given: Any) -> None:
        unified_attention(**given)
        live = given["out"][: int(given["cu_seqlens_q"][-1])]
        if live.numel() and live.dtype.itemsize == HALF:
            step = max(1, MOST_ROWS // live.shape[1])
            for first in range(0, live.shape[0], step):
                rows = live[first : first + step]
                rows.copy_(rewrite(rows.float()))

    return variant


def _merged(values: torch.Tensor, *, compares_broadcast: bool) -> torch.Tensor:
    """Return rows that were partial results, merged by two warps."""
    tokens, heads, head_size = values.shape
    merged = torch.empty_like(values, memory_format=torch.contiguous_format)
    for first in range(0, head_size, COLUMNS):
        columns = values[..., first : first + COLUMNS]
        count = tokens * heads * PARTS * (COLUMNS + 2)
        memory = torch.zeros(AROUND + count + AROUND, device=values.device)
        parts = memory[AROUND : AROUND + count].view(tokens, heads, PARTS, COLUMNS + 2)
        parts[..., : columns.shape[-1]] = columns[:, :, None] / PARTS  # else their sum could overflow
        parts[..., COLUMNS + 1] = 1.0 / PARTS
        out = torch.empty(tokens, heads, COLUMNS, device=values.device)
        strides = parts.stride(2), parts.stride(0), parts.stride(1), out.stride(0), out.stride(1)
        merge_kernel[heads, tokens](parts, out, *strides, PARTS, COLUMNS, compares_broadcast, num_warps=2)
        merged[..., first : first + COLUMNS] = out[..., : columns.shape[-1]]
    return merged


def _exchanged(values: torch.Tensor) -> torch.Tensor:
    """Return values that the threads of a program exchanged."""
    flat = values.flatten()
    programs = triton.cdiv(flat.numel(), LANES)
    scratch = torch.zeros(programs * LANES, device=values.device)
    exchange_kernel[programs,](flat, scratch, flat.numel(), LANES)
    return flat.view(values.shape)


merges_in_two_warps = _rewritten(lambda values: _merged(values, compares_broadcast=False))
"""Merges a tile of 128 parts and 128 columns in two warps, wrong in Triton 3.5 and 3.6 (lmdeploy#4920)."""
compares_after_broadcasting = _rewritten(lambda values: _merged(values, compares_broadcast=True))
"""The same with a mask that is compared after broadcasting, wrong in Triton 3.5 (lmdeploy#4696)."""
lacks_a_barrier = _rewritten(_exchanged)
"""Exchanges elements between warps through inline assembly, which orders nothing."""
