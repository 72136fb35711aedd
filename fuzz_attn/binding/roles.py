"""Roles: what the parameters of attention kernels mean, and the names that published kernels give them.

To add a role, add one entry to ``ROLES`` and, where the argument has to be computed, a function to ``values.py``. The
row of a feature in :mod:`fuzz_attn.case.aspects` names the roles that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fuzz_attn.binding import values
from fuzz_attn.binding.values import Problem


@dataclass(frozen=True)
class Role:
    """One role: what it is in words, the names of parameters that have it, and the argument in a call.

    ``spare`` names roles that say the same: an optional parameter is left at its default where one of them is bound.
    """

    words: str
    names: tuple[str, ...]
    value: Callable[[Problem], object]
    spare: tuple[str, ...] = ()


def _input(name: str) -> Callable[[Problem], object]:
    """Return a function that returns one of the case's tensors or numbers as it is."""
    return lambda problem: getattr(problem.tensors, name)


def _output(name: str) -> Callable[[Problem], object]:
    """Return a function that returns one of the case's outputs, None where the case does not have it."""

    def value(problem: Problem) -> object:
        output = problem.tensors.outputs.get(name)
        return None if output is None else output.tensor

    return value


def _optional(name: str) -> Callable[[Problem], object]:
    """Return a function that returns one of the case's tensors, or what "off" is where the case has none."""

    def value(problem: Problem) -> object:
        tensor = getattr(problem.tensors, name)
        return problem.off(name) if tensor is None else tensor

    return value


ROLES: Final[dict[str, Role]] = {
    "query": Role(
        "queries [num_tokens, num_query_heads, head_size]",
        ("q", "query", "queries", "q_extend", "xq"),
        _input("query"),
    ),
    "output": Role(
        "output, of the shape of the queries",
        ("out", "output", "o", "o_extend", "attn_out", "attn_output"),
        _output("out"),
    ),
    "batched_query": Role(
        "queries [num_tokens, 1, num_query_heads, head_size]", (), lambda problem: problem.tensors.query[:, None]
    ),
    "query_type": Role("Triton's type of the queries", ("compute_type",), values.query_type),
    "lse": Role(
        "log-sum-exp of each row, float32 [num_tokens, num_query_heads] or its transpose",
        ("lse", "softmax_lse", "out_lse", "lse_extend"),
        values.lse,
    ),
    "key_cache": Role(
        "cache of keys",
        ("k_cache", "key_cache", "k_buffer", "key_buffer", "k_caches", "kc", "cache_k", "paged_k"),
        lambda problem: problem.key_cache,
    ),
    "value_cache": Role(
        "cache of values",
        ("v_cache", "value_cache", "v_buffer", "value_buffer", "v_caches", "vc", "cache_v", "paged_v"),
        lambda problem: problem.value_cache,
    ),
    "latent_cache": Role(
        "cache of keys whose first elements are the values [num_blocks, block_size, head_size]",
        ("kv_buffer", "latent_cache"),
        lambda problem: problem.key_cache[:, :, 0],
    ),
    "latent_pages": Role("the same as [num_blocks, block_size, 1, head_size]", (), lambda problem: problem.key_cache),
    "latent_values": Role("its first elements, likewise", (), lambda problem: problem.value_cache),
    "new_keys": Role(
        "keys of the new tokens [num_tokens, num_kv_heads, head_size]",
        ("k", "key", "keys", "k_extend", "k_new", "new_k", "k_states"),
        values.new_keys,
    ),
    "new_values": Role(
        "values of the new tokens [num_tokens, num_kv_heads, head_size]",
        ("v", "value", "values", "v_extend", "v_new", "new_v", "v_states"),
        values.new_values,
    ),
    "block_table": Role(
        "page of each block of keys [num_seqs, max_blocks]",
        ("block_table", "block_tables", "page_table", "page_tables", "b_loc", "block_offsets", "kv_page_table"),
        _input("block_table"),
    ),
    "kv_indptr": Role(
        "prefix sums of the keys in kv_indices [num_seqs + 1]",
        ("kv_indptr", "paged_kv_indptr", "kv_page_indptr"),
        values.kv_indptr,
    ),
    "kv_indices": Role(
        "slot of each key, all sequences one after the other",
        ("kv_indices", "paged_kv_indices", "kv_page_indices"),
        values.kv_indices,
    ),
    "slot_table": Role(
        "slot of each key [rows, max_keys]",
        ("req_to_token", "req_to_tokens", "req_to_token_indexs", "slot_table"),
        values.slot_table,
    ),
    "request_ids": Role(
        "row of slot_table of each sequence", ("b_req_idx", "req_pool_indices", "request_ids"), values.request_ids
    ),
    "query_start_loc": Role(
        "prefix sums of the query lengths [num_seqs + 1]",
        (
            "query_start_loc",
            "cu_seqlens_q",
            "b_start_loc",
            "qo_indptr",
            "q_start_loc",
            "cu_q_lens",
            "cumulative_sequence_length_q",
        ),
        lambda problem: values.query_starts(problem.tensors),
    ),
    "query_lens": Role(
        "query tokens of each sequence",
        ("query_lens", "q_lens", "q_seq_length", "q_seq_lens"),
        values.query_lens,
        spare=("query_start_loc",),
    ),
    "seq_lens": Role(
        "length of each sequence, its new tokens included",
        (
            "seq_lens",
            "seqused_k",
            "b_seq_len",
            "cache_seqlens",
            "kv_seq_length",
            "kv_seq_lens",
            "kv_lens",
            "sequence_lengths",
            "lengths",
        ),
        values.seq_lens,
    ),
    "context_lens": Role(
        "keys of each sequence without its new tokens",
        ("context_lens", "prefix_lens", "b_prompt_cache_len", "b_ctx_len"),
        values.context_lens,
        spare=("seq_lens",),
    ),
    "key_start_loc": Role(
        "prefix sums of the sequence lengths [num_seqs + 1]",
        ("cu_seqlens_k", "cu_seqlens_kv", "k_start_loc", "cumulative_sequence_length_k"),
        values.key_start_loc,
        spare=("seq_lens",),
    ),
    "max_query_len": Role(
        "longest query of the batch",
        ("max_query_len", "max_seqlen_q", "max_input_len", "max_len_extend", "max_q_seq_length", "max_q_len", "max_q"),
        _input("max_query_len"),
    ),
    "max_seq_len": Role(
        "longest sequence of the batch",
        ("max_seq_len", "max_seqlen_k", "max_seqlen_kv", "max_kv_seq_length", "max_kv_len", "max_k"),
        _input("max_seq_len"),
    ),
    "block_size": Role("slots of a page", ("block_size", "page_size"), values.block_size),
    "softmax_scale": Role(
        "factor of the scores", ("softmax_scale", "sm_scale", "attn_scale", "scale"), _input("softmax_scale")
    ),
    "causal": Role("whether later keys are masked", ("causal", "is_causal"), values.causal),
    "top_left": Role("whether token i sees the first i + 1 keys", ("top_left", "top_left_causal"), values.top_left),
    "chunk_size": Role("keys of a chunk, 0 for none", ("chunk_size", "attention_chunk_size"), values.chunk_size),
    "custom_mask": Role(
        "bits of each sequence [query_len, seq_len], one after the other", ("custom_mask",), _optional("custom_mask")
    ),
    "replacing_mask": Role("the same in place of the causal mask, which it includes", (), values.replacing_mask),
    "mask_indptr": Role("prefix sums of the bits in custom_mask [num_seqs + 1]", ("mask_indptr",), values.mask_indptr),
    "window": Role(
        "sliding window", ("window_size", "sliding_window", "sliding_window_size", "local_window"), values.window
    ),
    "window_left": Role(
        "keys seen to the left of a row's own", ("window_size_left", "window_left"), values.window_left
    ),
    "window_right": Role(
        "keys seen to the right of a row's own", ("window_size_right", "window_right"), values.window_right
    ),
    "softcap": Role(
        "soft cap of the scores",
        ("softcap", "soft_cap", "logit_cap", "logits_soft_cap", "attn_logit_softcapping"),
        values.softcap,
    ),
    "alibi_slopes": Role("ALiBi slopes [num_query_heads]", ("alibi_slopes", "alibi"), _optional("alibi_slopes")),
    "qq_bias": Role("bias between new tokens", ("qq_bias",), _optional("qq_bias")),
    "sinks": Role("sinks [num_query_heads]", ("sinks", "sink", "s_aux", "attention_sinks"), _optional("sinks")),
    "q_scale": Role("scale of fp8 queries", ("q_scale", "q_descale"), values.q_scale),
    "k_scale": Role("scale of fp8 keys", ("k_scale", "k_descale"), values.k_scale),
    "v_scale": Role("scale of fp8 values", ("v_scale", "v_descale"), values.v_scale),
    "out_scale": Role(
        "scale of an fp8 output", ("out_scale", "output_scale", "o_scale", "fp8_out_scale"), values.out_scale
    ),
    "kv_cache_dtype": Role(
        "type of the caches: auto, fp8, fp8_e4m3 or fp8_e5m2", ("kv_cache_dtype",), values.kv_cache_dtype
    ),
    "kv_quant_mode": Role("1 for fp8 caches, else 0", ("kv_quant_mode",), values.kv_quant_mode),
    "skips_others": Role(
        "whether decode or prefill sequences are skipped",
        ("skip_decode", "filter_by_query_len"),
        _input("filter_by_query_len"),
    ),
    "num_segments": Role("segments of the 3D kernel, 0 for the 2D kernel", ("num_segments",), values.num_segments),
    "tile_size": Role("keys of a tile", ("tile_size",), lambda problem: problem.tensors.launch.tile_size or None),
    # Without names: some launchers call a single number so, others a number for each sequence.
    "seq_splits": Role("splits of each sequence [num_seqs]", (), values.seq_splits),
    "max_splits": Role("the most splits of a sequence", ("max_kv_splits",), values.max_splits),
    "split_outputs": Role("scratch: output of each split", ("att_out",), values.split_outputs),
    "split_lses": Role("scratch: log-sum-exp of each split", ("att_lse",), values.split_scalars),
    "segment_threshold": Role("largest batch of the 3D kernel", ("seq_threshold_3D",), values.segment_threshold),
    "scratch_segments": Role("segments of the scratch", ("num_par_softmax_segments",), values.scratch_segments),
    "segment_outputs": Role("scratch: output of each segment", ("softmax_segm_output",), values.segment_outputs),
    "segment_maxima": Role("scratch: maximum of each segment", ("softmax_segm_max",), values.segment_scalars),
    "segment_sums": Role("scratch: sum of each segment", ("softmax_segm_expsum",), values.segment_scalars),
}
"""Every role by its name."""

ROLE_OF: Final = {name: role for role, entry in ROLES.items() for name in entry.names}
"""The role of each known name; a name of new keys or values is that of the cache where nothing is packed."""

PACKED: Final = {"new_keys": "key_cache", "new_values": "value_cache"}
"""What the names of packed keys and values mean where a signature has no other name for the caches."""

SPLIT_ROLES: Final = ("seq_splits", "split_outputs", "split_lses")
"""What a launcher needs that takes the splits of each sequence, and scratch for them."""

SEGMENT_ROLES: Final = ("segment_threshold", "scratch_segments", "segment_outputs", "segment_maxima", "segment_sums")
"""Published versions since December 2025 launch the 3D kernel when they are given these, the 2D kernel for None."""
