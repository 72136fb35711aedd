"""Targets that are right, but for one property each: what breaks it happens in one of the launches that it compares.

Each is the attention of torch_attention.py, spoilt where a question about its arguments is answered with yes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch_attention import unified_attention  # type: ignore[import-not-found] # found beside this file, as a user's is

Target = Callable[..., None]


def _flip_a_bit(out: torch.Tensor, cu_seqlens_q: torch.Tensor) -> None:
    """Flip the last bit of an element of the last row: within every float32 bound, and not the same."""
    if out.dtype == torch.float32:
        out.view(torch.int32)[int(cu_seqlens_q[-1]) - 1, 0, 0] ^= 1


def _spoil_a_row(out: torch.Tensor, cu_seqlens_q: torch.Tensor) -> None:
    out[int(cu_seqlens_q[-1]) - 1, 0] = 77.0


def _where(asked: Callable[..., bool], spoil: Callable[[torch.Tensor, torch.Tensor], None]) -> Target:
    """Return the right attention, spoilt where the question is answered with yes."""

    @wraps(unified_attention)
    def variant(**given: Any) -> None:
        unified_attention(**given)
        if int(given["cu_seqlens_q"][-1]) and asked(**given):
            spoil(given["out"], given["cu_seqlens_q"])

    return variant


def _query_lens(cu_seqlens_q: torch.Tensor) -> list[int]:
    lengths: list[int] = cu_seqlens_q.diff().tolist()
    return lengths


def _stored(cache: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a cache without its poison."""
    return cache[cache.abs() < 1e30]


def _begins_in_upper_half(block_table: torch.Tensor, k: torch.Tensor, **_: Any) -> bool:
    return 2 * int(block_table[0, 0]) > k.shape[0] - 1


def _is_padded(q: torch.Tensor, **_: Any) -> bool:
    return not q.is_contiguous()


def _is_full(cu_seqlens_q: torch.Tensor, **_: Any) -> bool:
    """Answer whether there are several sequences and none is empty."""
    lengths = _query_lens(cu_seqlens_q)
    return len(lengths) > 1 and all(lengths)


def _begins_with_the_shortest(cu_seqlens_q: torch.Tensor, **_: Any) -> bool:
    lengths = [length for length in _query_lens(cu_seqlens_q) if length]
    return lengths[0] < lengths[-1]


def _is_alone(cu_seqlens_q: torch.Tensor, **_: Any) -> bool:
    return len(_query_lens(cu_seqlens_q)) == 1


def _slopes_rise(alibi_slopes: torch.Tensor | None, **_: Any) -> bool:
    return alibi_slopes is not None and bool(alibi_slopes[0] < alibi_slopes[-1])


def _has_large_keys(k: torch.Tensor, **_: Any) -> bool:
    return bool((_stored(k).abs() > 4.0).any())


def _has_zero_values(v: torch.Tensor, **_: Any) -> bool:
    return bool((_stored(v) == 0.0).any())


def _has_negative_values(v: torch.Tensor, **_: Any) -> bool:
    return bool((_stored(v) < 0.0).any())


def _has_an_odd_window(window_size: tuple[int, int], **_: Any) -> bool:
    return window_size[0] >= 0 and window_size[0] % 2 == 0


def _has_a_window(window_size: tuple[int, int], **_: Any) -> bool:
    return window_size[0] >= 0


def _is_given(name: str) -> Callable[..., bool]:
    return lambda **given: given[name] is not None


def merges_wrongly(num_segments: int | None = None, **given: Any) -> None:
    """Attend, but spoil a row when told to cut the keys into segments."""
    unified_attention(**given)
    if num_segments:
        _spoil_a_row(given["out"], given["cu_seqlens_q"])


moves_with_its_pages = _where(_begins_in_upper_half, _flip_a_bit)
feels_its_strides = _where(_is_padded, _flip_a_bit)
needs_an_empty_sequence = _where(_is_full, _flip_a_bit)
needs_an_empty_sequence_badly = _where(_is_full, _spoil_a_row)
wants_the_longest_first = _where(_begins_with_the_shortest, _spoil_a_row)
fears_to_be_alone = _where(_is_alone, _spoil_a_row)
wants_slopes_that_fall = _where(_slopes_rise, _spoil_a_row)
wants_small_keys = _where(_has_large_keys, _spoil_a_row)
wants_values_that_are_not_zero = _where(_has_zero_values, _spoil_a_row)
wants_positive_values = _where(_has_negative_values, _spoil_a_row)
wants_even_windows = _where(_has_an_odd_window, _spoil_a_row)
wants_no_window = _where(_has_a_window, _spoil_a_row)
wants_no_slopes = _where(_is_given("alibi_slopes"), _spoil_a_row)
wants_no_bias = _where(_is_given("qq_bias"), _spoil_a_row)
wants_no_sinks = _where(_is_given("sinks"), _spoil_a_row)
wants_no_scales = _where(_is_given("k_descale"), _spoil_a_row)
goes_beyond_its_values = _where(lambda **_: True, _spoil_a_row)
