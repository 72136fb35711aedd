"""Published interfaces: the signatures of all families, each with the conventions that come with its names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from fuzz_attn.binding.binding import Binding, Signature

Names: TypeAlias = frozenset[str]


@dataclass(frozen=True)
class Published:
    """A published interface. ``binding`` has all of its parameters.

    A callable must take the ``required`` ones. The ``opt_in`` ones are passed only to callables that name them, never
    through ``**kwargs``.
    """

    binding: Binding
    required: Names
    opt_in: Names

    def misfit(self, signature: Signature) -> str:
        """Return why a signature is not this interface; empty if it is."""
        missing = sorted(name for name in self.required if not signature.takes(name))
        if missing:
            return f"lacks {', '.join(missing)}"
        if signature.positional:
            return f"requires {', '.join(sorted(signature.positional))} as positional-only arguments"
        unknown = sorted(signature.required - set(self.binding.roles))
        return f"requires {', '.join(unknown)}, which the interface does not have" if unknown else ""

    def passed(self, signature: Signature) -> dict[str, str]:
        """Return the role of each parameter that a call of such a callable may pass."""
        return {name: role for name, role in self.binding.roles.items() if self._takes(signature, name)}

    def _takes(self, signature: Signature, name: str) -> bool:
        return name in signature.names or (signature.takes_any_keyword and name not in self.opt_in)


_SEGMENTS: Final = {
    "seq_threshold_3D": "segment_threshold",
    "num_par_softmax_segments": "scratch_segments",
    "softmax_segm_output": "segment_outputs",
    "softmax_segm_max": "segment_maxima",
    "softmax_segm_expsum": "segment_sums",
}

_SPLIT_OPTIONS: Final = {
    "kv_cache_dtype": "kv_cache_dtype",
    "k_scale": "k_scale",
    "v_scale": "v_scale",
    "alibi_slopes": "alibi_slopes",
    "sliding_window": "window",
    "sm_scale": "softmax_scale",
    "sinks": "sinks",
    "tile_size": "tile_size",
    "causal": "causal",
}
"""What the families with split caches take in addition."""

_SPLIT: Final = Binding(
    layout="split",
    output="in_place",
    window="keys",
    scales="tensor",
    scale_direction="multiply",
    fp8="typed",
    off={"window": None, "k_scale": 1.0, "v_scale": 1.0},  # published launchers always need a scale
    implied=("softmax_scale",),
)

UNIFIED: Final = Published(
    binding=Binding(
        family="unified",
        roles={
            "q": "query",
            "k": "key_cache",
            "v": "value_cache",
            "out": "output",
            "cu_seqlens_q": "query_start_loc",
            "max_seqlen_q": "max_query_len",
            "seqused_k": "seq_lens",
            "max_seqlen_k": "max_seq_len",
            "softmax_scale": "softmax_scale",
            "causal": "causal",
            "window_size": "window",
            "block_table": "block_table",
            "softcap": "softcap",
            "q_descale": "q_scale",
            "k_descale": "k_scale",
            "v_descale": "v_scale",
            "alibi_slopes": "alibi_slopes",
            "qq_bias": "qq_bias",
            "sinks": "sinks",
            "output_scale": "out_scale",
            "kv_quant_mode": "kv_quant_mode",
            "num_segments": "num_segments",
            "tile_size": "tile_size",
            **_SEGMENTS,
        },
        layout="rows",
        output="in_place",
        window="pair",
        scales="tensor",
        scale_direction="multiply",
        fp8="typed",
        off={"window": (-1, -1)},
    ),
    required=frozenset(("q", "k", "v", "out", "cu_seqlens_q", "seqused_k", "softmax_scale", "block_table")),
    opt_in=frozenset(("kv_quant_mode", "num_segments", "tile_size", *_SEGMENTS)),
)
"""`unified_attention`: prefill and decode in one launch."""


def _split(family: str, required: dict[str, str], options: dict[str, str]) -> Published:
    """Return an interface of a family with split caches."""
    roles = {**required, **options, **_SPLIT_OPTIONS}
    stated = {name: getattr(_SPLIT, name) for name in _SPLIT.__struct_fields__}
    binding = Binding(**{**stated, "family": family, "roles": roles})
    return Published(binding, required=frozenset(required), opt_in=frozenset(("tile_size", "causal")))


PAGED: Final = _split(
    "paged",
    {
        "query": "query",
        "output": "output",
        "key_cache": "key_cache",
        "value_cache": "value_cache",
        "block_table": "block_table",
        "seq_lens": "seq_lens",
    },
    {
        "query_start_loc": "query_start_loc",
        "output_scale": "out_scale",
        "filter_by_query_len": "skips_others",
    },
)
"""Paged decode: one query token of each sequence."""

CONTEXT: Final = _split(
    "context",
    {
        "q": "query",
        "k": "new_keys",
        "v": "new_values",
        "o": "output",
        "k_cache": "key_cache",
        "v_cache": "value_cache",
        "b_loc": "block_table",
        "b_start_loc": "query_start_loc",
        "b_seq_len": "seq_lens",
    },
    {
        "max_seq_len": "max_seq_len",
        "max_input_len": "max_query_len",
        "skip_decode": "skips_others",
        "fp8_out_scale": "out_scale",
    },
)
"""`context_attention_fwd`: densely packed new tokens on a paged context."""

CHUNKED: Final = _split(
    "chunked",
    {
        "query": "query",
        "key": "new_keys",
        "value": "new_values",
        "output": "output",
        "key_cache": "key_cache",
        "value_cache": "value_cache",
        "block_table": "block_table",
        "query_start_loc": "query_start_loc",
        "seq_lens": "seq_lens",
    },
    {
        "max_seq_len": "max_seq_len",
        "max_query_len": "max_query_len",
        "output_scale": "out_scale",
    },
)
"""`chunked_prefill_paged_decode`: context attention, then paged decode for sequences with one query token."""

MLA_DECODE: Final = Published(
    binding=Binding(
        family="mla_decode",
        roles={
            "q": "query",
            "latent_cache": "latent_cache",
            "out": "output",
            "block_table": "block_table",
            "seq_lens": "seq_lens",
            "softmax_scale": "softmax_scale",
            "lse": "lse",
            "num_splits": "num_segments",
            "tile_size": "tile_size",
        },
        layout="latent",
        output="in_place",
        off={"lse": None},
        implied=("softmax_scale",),
    ),
    required=frozenset(("q", "latent_cache", "out", "block_table", "seq_lens")),
    opt_in=frozenset(("num_splits", "tile_size")),
)
"""`mla_decode`: one query token of each sequence over a latent cache."""

_EXTEND: Final = {
    "q": "query",
    "k": "new_keys",
    "v": "new_values",
    "out": "output",
    "k_buffer": "key_cache",
    "v_buffer": "value_cache",
    "qo_indptr": "query_start_loc",
    "kv_indptr": "kv_indptr",
    "kv_indices": "kv_indices",
}

EXTEND: Final = Published(
    binding=Binding(
        family="extend",
        roles={
            **_EXTEND,
            "max_len_extend": "max_query_len",
            "sm_scale": "softmax_scale",
            "is_causal": "causal",
            "top_left": "top_left",
            "window_size": "window",
            "chunk_size": "chunk_size",
            "custom_mask": "custom_mask",
            "mask_indptr": "mask_indptr",
            "logit_cap": "softcap",
            "sinks": "sinks",
            "k_scale": "k_scale",
            "v_scale": "v_scale",
            "output_scale": "out_scale",
            "tile_size": "tile_size",
        },
        layout="slots",
        output="in_place",
        window="pair",
        scales="tensor",
        scale_direction="multiply",
        fp8="typed",
        off={"window": (-1, -1)},
        implied=("softmax_scale",),
    ),
    required=frozenset(_EXTEND),
    opt_in=frozenset(("tile_size",)),
)
"""`extend_attention`: new tokens packed, the slots of each context in a list, and masks other than the causal one."""

_TOKEN_DECODE: Final = {
    "q": "query",
    "k_buffer": "key_cache",
    "v_buffer": "value_cache",
    "out": "output",
    "kv_indptr": "kv_indptr",
    "kv_indices": "kv_indices",
}

TOKEN_DECODE: Final = Published(
    binding=Binding(
        family="token_decode",
        roles={
            **_TOKEN_DECODE,
            "att_out": "split_outputs",
            "att_lse": "split_lses",
            "num_kv_splits": "seq_splits",
            "max_kv_splits": "max_splits",
            "sm_scale": "softmax_scale",
            "k_scale": "k_scale",
            "v_scale": "v_scale",
            "logit_cap": "softcap",
            "sinks": "sinks",
            "sliding_window": "window",
            "output_scale": "out_scale",
            "lse": "lse",
            "tile_size": "tile_size",
        },
        layout="slots",
        output="in_place",
        window="keys",
        scales="tensor",
        scale_direction="multiply",
        fp8="typed",
        off={"window": None, "lse": None},
        implied=("softmax_scale",),
    ),
    required=frozenset(_TOKEN_DECODE),
    opt_in=frozenset(("att_out", "att_lse", "num_kv_splits", "max_kv_splits", "tile_size")),
)
"""`token_decode`: one query token of each sequence, the slots of its keys in a list, attention by splits."""

_VARLEN: Final = {
    "q": "query",
    "k": "key_cache",
    "v": "value_cache",
    "out": "output",
    "cu_seqlens_q": "query_start_loc",
    "cu_seqlens_k": "key_start_loc",
}

VARLEN: Final = Published(
    binding=Binding(
        family="varlen",
        roles={
            **_VARLEN,
            "max_seqlen_q": "max_query_len",
            "max_seqlen_k": "max_seq_len",
            "seqused_k": "seq_lens",
            "softmax_scale": "softmax_scale",
            "causal": "causal",
            "top_left": "top_left",
            "window_size": "window",
            "softcap": "softcap",
            "alibi_slopes": "alibi_slopes",
            "sinks": "sinks",
            "softmax_lse": "lse",
            "tile_size": "tile_size",
        },
        layout="slots",
        output="in_place",
        window="pair",
        off={"window": (-1, -1), "seq_lens": None, "lse": None},
        implied=("softmax_scale",),
    ),
    required=frozenset(_VARLEN),
    opt_in=frozenset(("tile_size",)),
)
"""`varlen_attention`: queries, keys and values packed, with lengths of their own."""

PUBLISHED: Final = {
    "unified": UNIFIED,
    "chunked": CHUNKED,
    "context": CONTEXT,
    "paged": PAGED,
    "extend": EXTEND,
    "mla_decode": MLA_DECODE,
    "token_decode": TOKEN_DECODE,
    "varlen": VARLEN,
}
"""Every family's interface. A signature that fits several belongs to the first of them."""
