"""Unified attention in plain torch with five bugs, which show in about one case in 2, 4, 15, 100 and 300."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch_attention import (  # type: ignore[import-not-found] # found beside this file, as a user's is
    unified_attention,
    window_one_too_long,
)


@wraps(unified_attention)
def five_bugs(**given: Any) -> None:
    """Write the attention of every query token into ``out``, often wrongly."""
    capped, sinks = given["softcap"] > 0, given["sinks"]
    if capped and given["alibi_slopes"] is not None and sinks is not None:
        raise ZeroDivisionError("no slopes below the soft cap")
    window_one_too_long(**given)
    _halve_rows_of_several_pages(given["k"].shape[1], **given)
    wide = given["q"].shape[2] > 128 and sinks is not None
    if wide and given["qq_bias"] is not None:
        given["out"][0].fill_(torch.nan)
    if wide and given["qq_bias"] is None and given["window_size"][0] >= 0 and capped:
        sinks[0] += 1


def _halve_rows_of_several_pages(
    block_size: int, out: torch.Tensor, cu_seqlens_q: torch.Tensor, seqused_k: torch.Tensor, **_: Any
) -> None:
    starts = cu_seqlens_q.tolist()
    for index, seq_len in enumerate(seqused_k.tolist()):
        if seq_len > block_size:
            rows = out[starts[index] : starts[index + 1]]
            rows.copy_((rows.float() / 2).to(rows.dtype))
