"""The families of the families with split caches: paged decode, context attention, and both together.

Names on the left are the published signatures', on the right the glossary's.
"""

from __future__ import annotations

from typing import Final

import torch

from fuzz_attn.case.families import Feature
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.targets.bindings.binding import Arguments, Binding

_CACHE_DTYPES: Final = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}

_LATE: Final = frozenset(("tile_size",))
"""This project's own launch hint, which goes to callables alone that name it."""

_FEATURES: Final[dict[Feature, tuple[str, ...]]] = {
    "window": ("sliding_window",),
    "alibi": ("alibi_slopes",),
    "sinks": ("sinks",),
    "fp8_kv": ("k_scale", "v_scale"),
    "uint8_cache": ("kv_cache_dtype",),
}


def _scoring(tensors: AttentionTensors) -> Arguments:
    """Return what all three take: how scores are made, and what the stored keys and values are worth."""
    return {
        "kv_cache_dtype": _kv_cache_dtype(tensors),
        "k_scale": _given(tensors.k_scale, tensors),
        "v_scale": _given(tensors.v_scale, tensors),
        "alibi_slopes": tensors.alibi_slopes,
        "sliding_window": tensors.window or None,
        "sm_scale": tensors.softmax_scale,
        "sinks": tensors.sinks,
        "tile_size": tensors.launch.tile_size or None,
    }


def _kv_cache_dtype(tensors: AttentionTensors) -> str:
    """Return the cache's type as serving names it: bytes of e4m3 go by the short name, which means the same."""
    name = _CACHE_DTYPES.get(tensors.kv_dtype, "auto")
    return "fp8" if name == "fp8_e4m3" and tensors.key_cache.dtype == torch.uint8 else name


def _given(scale: torch.Tensor | None, tensors: AttentionTensors) -> torch.Tensor:
    """Return the scale, 1 where the type has none: published launchers want a tensor always."""
    return torch.ones(1, device=tensors.query.device) if scale is None else scale


def _defaults(tensors: AttentionTensors) -> frozenset[str]:
    """Return which arguments hold what a launcher assumes of itself: the scale of a head's size."""
    own = tensors.softmax_scale == tensors.query.shape[2] ** -0.5
    return frozenset(("sm_scale",)) if own else frozenset()


def _paged(tensors: AttentionTensors) -> Arguments:
    return {
        "query": tensors.query,
        "output": tensors.output,
        "key_cache": tensors.key_cache,
        "value_cache": tensors.value_cache,
        "block_table": tensors.block_table,
        "query_start_loc": tensors.query_start_loc,
        "seq_lens": tensors.seq_lens,
        "output_scale": tensors.out_scale,
        "filter_by_query_len": tensors.filter_by_query_len,
        **_scoring(tensors),
    }


def _context(tensors: AttentionTensors) -> Arguments:
    return {
        "q": tensors.query,
        "k": tensors.new_keys,
        "v": tensors.new_values,
        "o": tensors.output,
        "k_cache": tensors.key_cache,
        "v_cache": tensors.value_cache,
        "b_loc": tensors.block_table,
        "b_start_loc": tensors.query_start_loc,
        "b_seq_len": tensors.seq_lens,
        "max_seq_len": tensors.max_seq_len,
        "max_input_len": tensors.max_query_len,
        "skip_decode": tensors.filter_by_query_len,
        "fp8_out_scale": tensors.out_scale,
        **_scoring(tensors),
    }


def _chunked(tensors: AttentionTensors) -> Arguments:
    return {
        "query": tensors.query,
        "key": tensors.new_keys,
        "value": tensors.new_values,
        "output": tensors.output,
        "key_cache": tensors.key_cache,
        "value_cache": tensors.value_cache,
        "block_table": tensors.block_table,
        "query_start_loc": tensors.query_start_loc,
        "seq_lens": tensors.seq_lens,
        "max_seq_len": tensors.max_seq_len,
        "max_query_len": tensors.max_query_len,
        "output_scale": tensors.out_scale,
        **_scoring(tensors),
    }


PAGED: Final = Binding(
    family="paged",
    required=frozenset(("query", "output", "key_cache", "value_cache", "block_table", "seq_lens")),
    known=frozenset(("query_start_loc", "kv_cache_dtype", "k_scale", "v_scale", "sm_scale", "tile_size")),
    feature_arguments={
        **_FEATURES,
        "fp8_out": ("output_scale",),
        "filter_by_query_len": ("filter_by_query_len", "query_start_loc"),
    },
    arguments=_paged,
    late=_LATE,
    defaults=_defaults,
)
"""Paged decode: one query token of each sequence."""

CONTEXT: Final = Binding(
    family="context",
    required=frozenset(("q", "k", "v", "o", "k_cache", "v_cache", "b_loc", "b_start_loc", "b_seq_len")),
    known=frozenset(("kv_cache_dtype", "max_seq_len", "max_input_len", "k_scale", "v_scale", "sm_scale", "tile_size")),
    feature_arguments={**_FEATURES, "fp8_out": ("fp8_out_scale",), "filter_by_query_len": ("skip_decode",)},
    arguments=_context,
    late=_LATE,
    defaults=_defaults,
)
"""`context_attention_fwd`: new tokens, densely packed, on a paged context."""

CHUNKED: Final = Binding(
    family="chunked",
    required=frozenset(
        ("query", "key", "value", "output", "key_cache", "value_cache", "block_table", "query_start_loc", "seq_lens")
    ),
    known=frozenset(("kv_cache_dtype", "max_seq_len", "max_query_len", "k_scale", "v_scale", "sm_scale", "tile_size")),
    feature_arguments={**_FEATURES, "fp8_out": ("output_scale",)},
    arguments=_chunked,
    late=_LATE,
    defaults=_defaults,
)
"""`chunked_prefill_paged_decode`: context attention, then paged decode for the sequences of one query token."""
