"""Decode over indexed slots in plain torch, written without any use of fuzz_attn, in several forms and wrong ones."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch


def token_decode(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    out: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    att_out: torch.Tensor,
    att_lse: torch.Tensor,
    num_kv_splits: torch.Tensor,
    max_kv_splits: int,
    sm_scale: float | None = None,
) -> None:
    """Write the attention of each sequence's row into ``out``, by splits of equal length through the scratch."""
    ends = kv_indptr.tolist()
    assert att_out.shape[2] == att_lse.shape[2] == max_kv_splits >= int(max([*num_kv_splits.tolist(), 1]))
    for sequence, splits in enumerate(num_kv_splits.tolist()):
        slots = kv_indices[ends[sequence] : ends[sequence + 1]].long()
        parts = [part for part in slots.tensor_split(splits) if len(part)]
        for place, part in enumerate(parts):
            att_out[sequence, :, place], att_lse[sequence, :, place] = _attend(
                q[sequence], k_buffer, v_buffer, part, sm_scale
            )
        lse = att_lse[sequence, :, : len(parts)]
        weights = lse.softmax(-1)
        out[sequence] = (weights[..., None] * att_out[sequence, :, : len(parts)]).sum(1).to(out.dtype)


def _attend(
    q: torch.Tensor, k_buffer: torch.Tensor, v_buffer: torch.Tensor, slots: torch.Tensor, sm_scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and log-sum-exp of the heads of one row over some slots."""
    group = q.shape[0] // k_buffer.shape[1]
    keys, values = (buffer[slots].float().repeat_interleave(group, 1) for buffer in (k_buffer, v_buffer))
    scores = torch.einsum("hd,jhd->hj", q.float(), keys) * (q.shape[1] ** -0.5 if sm_scale is None else sm_scale)
    return torch.einsum("hj,jhd->hd", scores.softmax(-1), values), scores.logsumexp(-1)


def by_request_rows(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    out: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
) -> None:
    """Write the same, where the slots of a sequence are a row of a table that an index names."""
    for sequence, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[row, :length].long()
        out[sequence] = _attend(q[sequence], k_buffer, v_buffer, slots, sm_scale)[0].to(out.dtype)


@wraps(by_request_rows)
def wrong_by_request_rows(**given: Any) -> None:
    """Take the rows of the table to be in the order of the sequences."""
    given["req_pool_indices"] = torch.arange(len(given["seq_lens"]))
    by_request_rows(**given)


@wraps(token_decode)
def wrong_without_shared_slots(**given: Any) -> None:
    """Overwrite a row if no two keys share a slot."""
    token_decode(**given)
    if len(given["out"]) and len(given["kv_indices"].unique()) == len(given["kv_indices"]):
        given["out"][0, 0] = 77.0
