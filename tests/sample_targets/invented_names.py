"""A correct launcher with names, a layout and conventions of its own, in plain torch, written without fuzz_attn.

Caches are ``[pages, heads, slots, size]``, the output is returned, scales are floats that divide, and a window counts
the keys before a row's own. ``invented_names.toml`` says so.
"""

from __future__ import annotations

import torch


def ragged_paged(
    asks: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    where: torch.Tensor,
    token_offsets: torch.Tensor,
    lens: torch.Tensor,
    temperature: float,
    reach: int = -1,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attention of every query token."""
    result = torch.zeros_like(asks)
    starts = token_offsets.tolist()
    for index, seq_len in enumerate(lens.tolist()):
        rows = slice(starts[index], starts[index + 1])
        count = rows.stop - rows.start
        if not count:
            continue
        first = max(0, seq_len - count - reach) if reach >= 0 else 0
        positions = torch.arange(first, seq_len)
        keys = gathered(key_pages, where[index], positions, k_scale, asks.dtype)
        values = gathered(value_pages, where[index], positions, v_scale, asks.dtype)
        queries = asks[rows].float().reshape(count, keys.shape[1], -1, asks.shape[2])
        scores = torch.einsum("ihgd,jhd->hgij", queries, keys) * temperature
        distance = (seq_len - count + torch.arange(count))[:, None] - positions
        hidden = (distance < 0) | (distance > reach if reach >= 0 else torch.zeros_like(distance, dtype=torch.bool))
        weights = normalised(scores.masked_fill(hidden, -torch.inf), sinks)
        outputs = torch.einsum("hgij,jhd->ihgd", weights, values).flatten(1, 2)
        result[rows] = outputs.to(result.dtype)
    return result


def gathered(
    cache: torch.Tensor, pages: torch.Tensor, positions: torch.Tensor, unit: float, dtype: torch.dtype
) -> torch.Tensor:
    """Return keys or values ``[positions, heads, size]`` as real numbers."""
    rows = cache[pages[positions // cache.shape[2]].long(), :, positions % cache.shape[2]].float()
    return rows if cache.dtype == dtype else (rows / unit).to(dtype).float()


def normalised(scores: torch.Tensor, extra: torch.Tensor | None) -> torch.Tensor:
    """Return the softmax of the scores ``[kv heads, group, queries, keys]``, with one more logit for each head."""
    if extra is None:
        return scores.softmax(-1)
    logit = extra.float().reshape(*scores.shape[:2], 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat((scores, logit), -1).softmax(-1)[..., :-1]


def counts_own(
    asks: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    where: torch.Tensor,
    token_offsets: torch.Tensor,
    lens: torch.Tensor,
    temperature: float,
    reach: int = 0,
) -> torch.Tensor:
    """Return the same; a window counts keys, a row's own included, and 0 is none."""
    return ragged_paged(asks, key_pages, value_pages, where, token_offsets, lens, temperature, reach - 1)


def takes_both(
    asks: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    where: torch.Tensor,
    token_offsets: torch.Tensor,
    lens: torch.Tensor,
    temperature: float,
    reach: int | tuple[int, int] = 0,
) -> torch.Tensor:
    """Return the same; a window is a number of keys or (keys before a row's own, 0)."""
    left = reach[0] if isinstance(reach, tuple) else reach - 1
    return ragged_paged(asks, key_pages, value_pages, where, token_offsets, lens, temperature, left)


def half_too_large(
    asks: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    where: torch.Tensor,
    token_offsets: torch.Tensor,
    lens: torch.Tensor,
    temperature: float,
    reach: int = -1,
) -> torch.Tensor:
    """Return a wrong result: every element is half as large again as it should be."""
    result = ragged_paged(asks, key_pages, value_pages, where, token_offsets, lens, temperature, reach)
    return result * 1.5
