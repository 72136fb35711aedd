"""Targets that are right except for one property each: one of the launches that the property compares is wrong.

Each is the attention of torch_attention.py whose output is changed where a condition on the arguments is true.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch_attention import unified_attention  # type: ignore[import-not-found] # found beside this file, as a user's is

Target = Callable[..., None]


def _flip_a_bit(out: torch.Tensor, cu_seqlens_q: torch.Tensor) -> None:
    """Flip the last bit of an element of the last row: the bits differ, but stay within every float32 bound."""
    if out.dtype == torch.float32:
        out.view(torch.int32)[int(cu_seqlens_q[-1]) - 1, 0, 0] ^= 1


def _overwrite_a_row(out: torch.Tensor, cu_seqlens_q: torch.Tensor) -> None:
    out[int(cu_seqlens_q[-1]) - 1, 0] = 77.0


def _where(condition: Callable[..., bool], change: Callable[[torch.Tensor, torch.Tensor], None]) -> Target:
    """Return the right attention whose output is changed where the condition is true."""

    @wraps(unified_attention)
    def variant(**given: Any) -> None:
        unified_attention(**given)
        if int(given["cu_seqlens_q"][-1]) and condition(**given):
            change(given["out"], given["cu_seqlens_q"])

    return variant


def _query_lens(cu_seqlens_q: torch.Tensor) -> list[int]:
    lengths: list[int] = cu_seqlens_q.diff().tolist()
    return lengths


def _stored(cache: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a cache without its poison."""
    return cache[cache.abs() < 1e30]


def _first_page_in_upper_half(block_table: torch.Tensor, k: torch.Tensor, **_: Any) -> bool:
    return 2 * int(block_table[0, 0]) > k.shape[0] - 1


def _query_is_padded(q: torch.Tensor, **_: Any) -> bool:
    return not q.is_contiguous()


def _no_sequence_is_empty(cu_seqlens_q: torch.Tensor, **_: Any) -> bool:
    """Return whether there are several sequences and none is empty."""
    lengths = _query_lens(cu_seqlens_q)
    return len(lengths) > 1 and all(lengths)


def _shortest_sequence_is_first(cu_seqlens_q: torch.Tensor, **_: Any) -> bool:
    lengths = [length for length in _query_lens(cu_seqlens_q) if length]
    return lengths[0] < lengths[-1]


def _one_sequence(cu_seqlens_q: torch.Tensor, **_: Any) -> bool:
    return len(_query_lens(cu_seqlens_q)) == 1


def _slopes_rise(alibi_slopes: torch.Tensor | None, **_: Any) -> bool:
    return alibi_slopes is not None and bool(alibi_slopes[0] < alibi_slopes[-1])


def _has_large_keys(k: torch.Tensor, **_: Any) -> bool:
    return bool((_stored(k).abs() > 4.0).any())


def _has_zero_values(v: torch.Tensor, **_: Any) -> bool:
    return bool((_stored(v) == 0.0).any())


def _has_negative_values(v: torch.Tensor, **_: Any) -> bool:
    return bool((_stored(v) < 0.0).any())


def _has_odd_window(window_size: tuple[int, int], **_: Any) -> bool:
    return window_size[0] >= 0 and window_size[0] % 2 == 0


def _has_window(window_size: tuple[int, int], **_: Any) -> bool:
    return window_size[0] >= 0


def _pages_are_shared(block_table: torch.Tensor, cu_seqlens_q: torch.Tensor, **_: Any) -> bool:
    """Return whether two sequences with query tokens begin with the same page."""
    first = [int(row[0]) for row, length in zip(block_table, _query_lens(cu_seqlens_q), strict=False) if length]
    return len(set(first)) < len(first)


def _has(name: str) -> Callable[..., bool]:
    return lambda **given: given[name] is not None


def wrong_in_segments(num_segments: int | None = None, **given: Any) -> None:
    """Overwrite a row if the keys are to be cut into segments."""
    unified_attention(**given)
    if num_segments:
        _overwrite_a_row(given["out"], given["cu_seqlens_q"])


depends_on_page_order = _where(_first_page_in_upper_half, _flip_a_bit)
depends_on_strides = _where(_query_is_padded, _flip_a_bit)
depends_on_empty_sequences = _where(_no_sequence_is_empty, _flip_a_bit)
wrong_without_empty_sequences = _where(_no_sequence_is_empty, _overwrite_a_row)
wrong_with_shortest_first = _where(_shortest_sequence_is_first, _overwrite_a_row)
wrong_for_one_sequence = _where(_one_sequence, _overwrite_a_row)
wrong_with_shared_pages = _where(_pages_are_shared, _overwrite_a_row)
wrong_with_rising_slopes = _where(_slopes_rise, _overwrite_a_row)
wrong_with_large_keys = _where(_has_large_keys, _overwrite_a_row)
wrong_with_zero_values = _where(_has_zero_values, _overwrite_a_row)
wrong_with_negative_values = _where(_has_negative_values, _overwrite_a_row)
wrong_with_odd_window = _where(_has_odd_window, _overwrite_a_row)
wrong_with_window = _where(_has_window, _overwrite_a_row)
wrong_with_slopes = _where(_has("alibi_slopes"), _overwrite_a_row)
wrong_with_qq_bias = _where(_has("qq_bias"), _overwrite_a_row)
wrong_with_sinks = _where(_has("sinks"), _overwrite_a_row)
wrong_with_scales = _where(_has("k_descale"), _overwrite_a_row)
outside_the_value_range = _where(lambda **_: True, _overwrite_a_row)
