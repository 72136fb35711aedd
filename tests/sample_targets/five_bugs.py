"""Unified attention in plain torch with five bugs, which show in about one case in 2, 4, 20, 60 and 300."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
import triton
import triton.language as tl
from torch_attention import (  # type: ignore[import-not-found] # found beside this file, as a user's is
    unified_attention,
    window_one_too_long,
)


@wraps(unified_attention)
def five_bugs(**given: Any) -> None:
    """Write the attention of every query token into ``out``, often wrongly."""
    _raise_for_rare_features(**given)
    window_one_too_long(**given)
    _make_mistakes(**given)


@wraps(unified_attention)
def five_bugs_one_in_every_case(**given: Any) -> None:
    """Write the attention of every query token into ``out``; read outside of a block table of several rows."""
    _raise_for_rare_features(**given)
    unified_attention(**given)
    table = given["block_table"]
    if table.shape[0] > 1:
        read_kernel[(1,)](table, table.stride(0) * (table.shape[0] - 1) + table.shape[1], torch.empty_like(table))
    _make_mistakes(**given)


@triton.jit
def read_kernel(table_ptr, size, copy_ptr):
    tl.store(copy_ptr, tl.load(table_ptr + size))


def _raise_for_rare_features(
    softcap: float, alibi_slopes: torch.Tensor | None, sinks: torch.Tensor | None, **_: Any
) -> None:
    if softcap > 0 and alibi_slopes is not None and sinks is not None:
        raise ZeroDivisionError("no slopes below the soft cap")


def _make_mistakes(**given: Any) -> None:
    sinks = given["sinks"]
    _halve_rows_of_several_pages(given["k"].shape[1], **given)
    wide = given["q"].shape[2] > 128 and sinks is not None and given["max_seqlen_q"] > 0
    if wide and given["qq_bias"] is not None:
        given["out"][0].fill_(torch.nan)
    if sinks is not None and given["max_seqlen_k"] > 256 and 0 in given["cu_seqlens_q"].diff():
        sinks[0] += 1


def _halve_rows_of_several_pages(
    block_size: int, out: torch.Tensor, cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any
) -> None:
    starts = cu_seqlens_q.tolist()
    for index, seq_len in enumerate(seqused_k.tolist()):
        if seq_len > block_size:
            rows = out[starts[index] : starts[index + 1]]
            rows.copy_((rows.float() / 2).to(rows.dtype))
