"""The families with split caches: paged decode, context attention, and chunked prefill, which is both together.

Names of parameters are the published signatures', values have this project's names.
"""

from __future__ import annotations

from typing import Final

import torch

from fuzz_attn.case.families import UNPUBLISHED_FEATURES
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.targets.bindings.binding import Binding, Parameter, passed_scale

_NAMES: Final[dict[torch.dtype, tuple[str, str, str]]] = {
    torch.float8_e4m3fn: ("fp8_e4m3", "fp8", "auto"),
    torch.float8_e5m2: ("fp8_e5m2", "fp8_e5m2", "auto"),
}
_NAMES_OF_BYTES: Final[dict[torch.dtype, tuple[str, str, str]]] = {
    torch.float8_e4m3fn: ("fp8", "fp8_e4m3", "fp8"),
    torch.float8_e5m2: ("fp8_e5m2", "fp8_e5m2", "fp8_e5m2"),
}


def _kv_cache_dtype(tensors: AttentionTensors) -> str:
    """Return one of the names of the cache's type; bytes must be named."""
    names = _NAMES_OF_BYTES if tensors.key_cache.dtype == torch.uint8 else _NAMES
    return names[tensors.kv_dtype][tensors.form.cache_name] if tensors.kv_dtype in names else "auto"


def _sliding_window(tensors: AttentionTensors) -> int | None:
    return tensors.window or (None, 0, -1)[tensors.form.window]


def _query_starts(tensors: AttentionTensors) -> torch.Tensor | None:
    """Return the starts of the queries, which paged decode needs only to skip sequences."""
    needed = tensors.form.query_starts or tensors.filter_by_query_len
    return tensors.query_start_loc if needed else None


def _k_scale(tensors: AttentionTensors) -> torch.Tensor | None:
    return _scale_or_one(tensors, tensors.k_scale)


def _v_scale(tensors: AttentionTensors) -> torch.Tensor | None:
    return _scale_or_one(tensors, tensors.v_scale)


def _scale_or_one(tensors: AttentionTensors, scale: torch.Tensor | None) -> torch.Tensor | None:
    """Return the scale, 1 where the type has none: published launchers always need a tensor."""
    return torch.ones(1, device=tensors.query.device) if scale is None else passed_scale(tensors, scale)


def _has_default_scale(tensors: AttentionTensors) -> bool:
    """Return whether the softmax scale is the one that launchers derive from the head size."""
    return tensors.softmax_scale == float(tensors.query.shape[2] ** -0.5)


_COMMON: Final = (
    Parameter("kv_cache_dtype", _kv_cache_dtype, features=("uint8_cache",)),
    Parameter("k_scale", _k_scale, features=("fp8_kv",)),
    Parameter("v_scale", _v_scale, features=("fp8_kv",)),
    Parameter("alibi_slopes", lambda tensors: tensors.alibi_slopes, features=("alibi",)),
    Parameter("sliding_window", _sliding_window, features=("window",)),
    Parameter("sm_scale", lambda tensors: tensors.softmax_scale, is_default=_has_default_scale),
    Parameter("sinks", lambda tensors: tensors.sinks, features=("sinks",)),
    Parameter("tile_size", lambda tensors: tensors.launch.tile_size or None, opt_in=True),
)
"""What all three families take."""

PAGED: Final = Binding(
    family="paged",
    parameters=(
        Parameter("query", lambda tensors: tensors.query, required=True),
        Parameter("output", lambda tensors: tensors.output, required=True),
        Parameter("key_cache", lambda tensors: tensors.key_cache, required=True),
        Parameter("value_cache", lambda tensors: tensors.value_cache, required=True),
        Parameter("block_table", lambda tensors: tensors.block_table, required=True),
        Parameter("query_start_loc", _query_starts, features=("filter_by_query_len",)),
        Parameter("seq_lens", lambda tensors: tensors.seq_lens, required=True),
        Parameter("output_scale", lambda tensors: tensors.out_scale, features=("fp8_out",)),
        Parameter(
            "filter_by_query_len", lambda tensors: tensors.filter_by_query_len, features=("filter_by_query_len",)
        ),
        *_COMMON,
    ),
    undeclared=UNPUBLISHED_FEATURES,
)
"""Paged decode: one query token of each sequence."""

CONTEXT: Final = Binding(
    family="context",
    parameters=(
        Parameter("q", lambda tensors: tensors.query, required=True),
        Parameter("k", lambda tensors: tensors.new_keys, required=True),
        Parameter("v", lambda tensors: tensors.new_values, required=True),
        Parameter("o", lambda tensors: tensors.output, required=True),
        Parameter("k_cache", lambda tensors: tensors.key_cache, required=True),
        Parameter("v_cache", lambda tensors: tensors.value_cache, required=True),
        Parameter("b_loc", lambda tensors: tensors.block_table, required=True),
        Parameter("b_start_loc", lambda tensors: tensors.query_start_loc, required=True),
        Parameter("b_seq_len", lambda tensors: tensors.seq_lens, required=True),
        Parameter("max_seq_len", lambda tensors: tensors.max_seq_len),
        Parameter("max_input_len", lambda tensors: tensors.max_query_len),
        Parameter("skip_decode", lambda tensors: tensors.filter_by_query_len, features=("filter_by_query_len",)),
        Parameter("fp8_out_scale", lambda tensors: tensors.out_scale, features=("fp8_out",)),
        *_COMMON,
    ),
    undeclared=UNPUBLISHED_FEATURES,
)
"""`context_attention_fwd`: densely packed new tokens on a paged context."""

CHUNKED: Final = Binding(
    family="chunked",
    parameters=(
        Parameter("query", lambda tensors: tensors.query, required=True),
        Parameter("key", lambda tensors: tensors.new_keys, required=True),
        Parameter("value", lambda tensors: tensors.new_values, required=True),
        Parameter("output", lambda tensors: tensors.output, required=True),
        Parameter("key_cache", lambda tensors: tensors.key_cache, required=True),
        Parameter("value_cache", lambda tensors: tensors.value_cache, required=True),
        Parameter("block_table", lambda tensors: tensors.block_table, required=True),
        Parameter("query_start_loc", lambda tensors: tensors.query_start_loc, required=True),
        Parameter("seq_lens", lambda tensors: tensors.seq_lens, required=True),
        Parameter("max_seq_len", lambda tensors: tensors.max_seq_len),
        Parameter("max_query_len", lambda tensors: tensors.max_query_len),
        Parameter("output_scale", lambda tensors: tensors.out_scale, features=("fp8_out",)),
        *_COMMON,
    ),
    undeclared=UNPUBLISHED_FEATURES,
)
"""`chunked_prefill_paged_decode`: context attention, then paged decode for sequences with one query token."""
