"""Everything that the contract of our kernels allows is drawn: its freedoms against up to 10,080 cases a family."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, TypeAlias

import pytest

from fuzz_attn.case.aspects import FEATURES_OF, UNPUBLISHED_FEATURES
from fuzz_attn.case.attention_case import AttentionCase, far_length
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import is_fp8
from fuzz_attn.case.recipes import Chunks, Custom, Full, Lookahead, TopLeft
from fuzz_attn.engine import schedule
from fuzz_attn.engine.schedule import ON_CPU
from fuzz_attn.operations.operation import derived_seed
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.draws import Sample
from fuzz_attn.targets.loading import load_target

ROUNDS_OF_EACH_FAMILY = 42


def far_axes(case: AttentionCase) -> set[str]:
    """The far axes that have more than one index."""
    return {name for name in case.strides.far if far_length(case, name) > 1}


Freedoms: TypeAlias = dict[str, Callable[[AttentionCase], object]]
"""What arguments may be beyond the plainest call: the name of each freedom, and whether a case uses it."""

OF_ALL: Final[Freedoms] = {
    "dense_q": lambda c: c.strides.q_token and c.strides.q_head and c.strides.out_token and c.strides.out_head,
    "out_rows": lambda c: c.form.extra_output_rows and c.num_tokens,
    "table_rows": lambda c: c.form.extra_table_rows and c.num_tokens,
    "table_stride": lambda c: c.strides.block_table,
    "far_q": lambda c: {"q_token", "q_head"} & far_axes(c),
    "far_out": lambda c: {"out_token", "out_head"} & far_axes(c),
    "far_slots": lambda c: "cache_slot" in far_axes(c),
    "far_heads": lambda c: "cache_head" in far_axes(c),
    "far_table": lambda c: "block_table" in far_axes(c),
    "padding_rows": lambda c: c.padded_tokens,
    "no_sequence": lambda c: not c.sequences,
    "empty_sequences": lambda c: any(not s.query_len for s in c.sequences),
    "out_dtype": lambda c: not is_fp8(c.dtypes.q) and not is_fp8(c.dtypes.out) and c.dtypes.out != c.dtypes.q,
    "fp8_out_kind": lambda c: is_fp8(c.dtypes.kv) and is_fp8(c.dtypes.out) and c.dtypes.kv != c.dtypes.out,
    "scales_of_zero": lambda c: 0.0 in (c.scales.q, c.scales.k, c.scales.v),
    "negative_scales": lambda c: min(c.scales.k, c.scales.v) < 0,
    "softmax_scale_of_zero": lambda c: not c.softmax_scale,
    "negative_softmax_scale": lambda c: c.softmax_scale < 0,
    "scalar_scales": lambda c: c.form.scales == "scalar" and is_fp8(c.dtypes.kv),
    "expanded_scales": lambda c: c.form.scales == "expanded" and is_fp8(c.dtypes.kv) and c.scales.v != 1,
    "omitted_scales": lambda c: c.form.scales == "omitted" and is_fp8(c.dtypes.kv) and c.scales.v == 1,
    "float16_slopes": lambda c: c.alibi and c.alibi.dtype == "float16",
    "bfloat16_slopes": lambda c: c.alibi and c.alibi.dtype == "bfloat16",
    "float64_slopes": lambda c: c.alibi and c.alibi.dtype == "float64",
    "float16_sinks": lambda c: c.sinks and c.sinks.dtype == "float16",
    "bfloat16_sinks": lambda c: c.sinks and c.sinks.dtype == "bfloat16",
    "float64_sinks": lambda c: c.sinks and c.sinks.dtype == "float64",
    "largest_tile": lambda c: c.launch.tile_size == 128,
    "largest_head": lambda c: c.heads.head_size == 256,
    "largest_group": lambda c: c.heads.num_queries_per_kv == 64,
    "many_kv_heads": lambda c: c.heads.num_kv_heads >= 8,
    "many_sequences": lambda c: len(c.sequences) > 64,
    "many_tokens": lambda c: c.family == "paged" or c.max_query_len >= 128,
    "many_pages": lambda c: sum(-(-s.seq_len // c.pages.block_size) for s in c.sequences) >= 1024,
    "large_pages": lambda c: c.pages.block_size >= 784,
    "far_alibi": lambda c: c.alibi and c.max_seq_len > 2048,
}
"""What every launcher allows."""

OF_UNIFIED: Final[Freedoms] = {
    "windows_of_all": lambda c: not c.window and c.form.window % 2,
    "right_of_window": lambda c: c.window and c.form.window % 2,
    "bias_rows": lambda c: c.qq_bias and c.qq_bias.extra_rows,
    "bias_columns": lambda c: c.qq_bias and c.qq_bias.extra_columns,
    "bias_column_stride": lambda c: c.qq_bias and c.qq_bias.order == "rows" and c.qq_bias.step > 1,
    "far_bias_rows": lambda c: "bias_row" in far_axes(c),
    "far_bias_columns": lambda c: "bias_column" in far_axes(c),
    "bias_by_columns": lambda c: c.qq_bias and c.qq_bias.order == "columns",
    "expanded_bias_rows": lambda c: c.qq_bias and c.qq_bias.order == "one_row",
    "expanded_bias_columns": lambda c: c.qq_bias and c.qq_bias.order == "one_column",
    "float16_bias": lambda c: c.qq_bias and c.qq_bias.dtype == "float16",
    "bfloat16_bias": lambda c: c.qq_bias and c.qq_bias.dtype == "bfloat16",
    "float64_bias": lambda c: c.qq_bias and c.qq_bias.dtype == "float64",
    "fp8_kinds": lambda c: is_fp8(c.dtypes.q) and c.dtypes.q != c.dtypes.kv,
    "value_cache_strides": lambda c: c.strides.value_slot and c.strides.cache in ("separate", "heads_first"),
    "many_segments": lambda c: c.launch.num_segments >= 64,
}
"""What `unified_attention` allows beyond that."""

OF_SPLIT: Final[Freedoms] = {
    "head_stride": lambda c: c.strides.page_head and c.heads.num_kv_heads > 1,
    "chunk_stride": lambda c: c.strides.key_chunk and c.strides.cache == "separate",
    "slot_stride": lambda c: c.strides.key_slot and c.strides.cache == "separate",
    "dim_stride": lambda c: c.strides.value_dim and c.strides.cache == "separate",
    "far_dims": lambda c: "cache_dim" in far_axes(c),
    "pieces": lambda c: c.strides.key_piece,
    "cache_names": lambda c: is_fp8(c.dtypes.kv) and c.form.cache_name,
    "bytes": lambda c: c.uint8_cache,
    "window_of_zero": lambda c: not c.window and c.form.window == 1,
    "window_of_minus_one": lambda c: not c.window and c.form.window == 2,
}
"""What every launcher over split caches allows beyond that."""

OF_NEW_TOKENS: Final[Freedoms] = {
    "new_token_rows": lambda c: c.form.extra_new_rows and c.num_tokens,
    "new_value_strides": lambda c: c.strides.new_value_token or c.strides.new_value_head,
    "far_new_tokens": lambda c: {"new_token", "new_head"} & far_axes(c),
    "stale_cache": lambda c: c.stale_cache,
}
"""The same for launchers that take the keys and values of the new tokens."""

OF_DECODE: Final[Freedoms] = {
    "length_of_zero": lambda c: any(s.seq_len == 0 and s.query_len == 1 for s in c.sequences),
    "no_starts": lambda c: not c.form.query_starts and not c.filter_by_query_len,
}
"""The same for paged decode."""

NOT_OF_EXTEND: Final = frozenset(
    ("table_rows", "table_stride", "far_slots", "far_table", "far_alibi", "many_pages", "large_pages")
) | {"float16_slopes", "bfloat16_slopes", "float64_slopes"}
"""What no call without a block table, pages and slopes has."""

OF_MASKS: Final[Freedoms] = {
    "top_left": lambda c: isinstance(c.mask, TopLeft) and c.max_seq_len > c.max_query_len > 1,
    "not_causal": lambda c: isinstance(c.mask, Full) and c.window,
    "lookahead": lambda c: isinstance(c.mask, Lookahead) and 0 < c.mask.keys < c.max_query_len and c.window,
    "longest_lookahead": lambda c: isinstance(c.mask, Lookahead) and c.mask.keys == 2**31 - 2 and c.max_query_len > 1,
    "chunks": lambda c: isinstance(c.mask, Chunks) and 1 < c.mask.size < c.max_seq_len,
    "tree_alone": lambda c: isinstance(c.mask, Custom) and c.mask.bits == "tree" and not c.mask.causal,
    "random_bits_and_causal": lambda c: isinstance(c.mask, Custom) and c.mask.bits == "random" and c.mask.causal,
    "rows_of_nothing": lambda c: isinstance(c.mask, Custom) and c.mask.empty_rows and c.num_tokens,
    "poison_between_keys": lambda c: isinstance(c.mask, Custom) and c.mask.poisoned and c.num_tokens,
}
"""What launchers with masks other than the causal one allow."""

OF_LSE: Final[Freedoms] = {
    "far_lse_tokens": lambda c: "lse_token" in far_axes(c),
    "far_lse_heads": lambda c: "lse_head" in far_axes(c),
}
"""What launchers that write a log-sum-exp allow."""

OF_LATENT: Final[Freedoms] = {
    "length_of_zero": OF_DECODE["length_of_zero"],
    "largest_key": lambda c: (c.heads.head_size, c.heads.value_size) == (576, 512),
    "values_are_keys": lambda c: c.heads.value_size in (0, c.heads.head_size),
    "no_lse": lambda c: c.lse is None,
    "lse_with_gaps": lambda c: c.lse and c.strides.out_head and len(c.sequences) > 1,
    **OF_LSE,
    "many_splits": lambda c: c.launch.num_segments >= 16,
    "largest_group_of_all": lambda c: c.heads.num_queries_per_kv == 128,
}
"""What decode on a latent cache allows."""

OF_TOKENS: Final[Freedoms] = OF_LATENT | {
    "largest_key": lambda c: c.heads.head_size == 256,
    "largest_value": lambda c: c.heads.head_size < c.heads.value_size == 256,
    "largest_group_of_all": lambda c: c.heads.num_queries_per_kv == 64,
    "no_window": lambda c: not c.window and c.form.window == 1,
    "splits_of_each": lambda c: c.ragged_splits and len(c.sequences) > c.launch.num_segments,
    "own_number_of_splits": lambda c: c.launch.path == "auto",
    "sink_above_all": lambda c: c.sinks and c.lse and c.sinks.level > 100.0,
    "sink_without_keys": lambda c: c.sinks and c.lse and any(s.seq_len == 0 for s in c.sequences),
    "shared_slots": lambda c: c.pages.shared_prefix and len(c.sequences) > 1 and c.pages.block_size == 1,
    "slots_far_into_the_caches": lambda c: c.pages.first_block and c.num_tokens,
    "far_heads": lambda c: "cache_head" in far_axes(c),
    "padding": lambda c: c.padded_tokens and c.form.extra_output_rows,
}
"""What decode over indexed slots allows."""

OF_VARLEN: Final[Freedoms] = {
    **{
        name: shows
        for name, shows in OF_MASKS.items()
        if name in ("top_left", "not_causal", "lookahead", "longest_lookahead")
    },
    **OF_LSE,
    "sink_above_all": lambda c: c.sinks and c.lse and c.sinks.level > 100.0,
    "no_keys": lambda c: any(s.has_no_key for s in c.sequences),
    "some_keys": lambda c: any(0 < s.seq_len < s.query_len for s in c.sequences),
    "keys_of_no_query": lambda c: any(s.seq_len > 0 == s.query_len for s in c.sequences) and c.num_tokens,
    "cross": lambda c: isinstance(c.mask, Full) and any(s.query_len > s.seq_len > 0 for s in c.sequences),
    "window_behind_the_keys": lambda c: isinstance(c.mask, TopLeft) and c.window and _rows_beyond(c),
    "unused_rows": lambda c: any(s.seq_len % c.pages.block_size for s in c.sequences),
    "no_unused_rows": lambda c: c.pages.block_size == 1 and len(c.sequences) > 1,
    "rows_behind_the_last": lambda c: c.pages.spare_blocks,
    "keys_and_values_alternate": lambda c: c.cache_layout.arrangement == "blocks_first",
    "other_strides_of_values": lambda c: c.strides.value_slot and c.cache_layout.arrangement == "separate",
    "larger_values": lambda c: c.heads.value_size > c.heads.head_size,
    "lse_with_gaps": OF_LATENT["lse_with_gaps"],
    "far_keys": lambda c: "cache_slot" in c.strides.far,
    "far_heads": lambda c: "cache_head" in c.strides.far,
    "out_rows": lambda c: c.form.extra_output_rows,
}
"""What dense attention with lengths of their own allows."""


def _rows_beyond(case: AttentionCase) -> bool:
    """Return whether the last query token of a sequence sees none of its keys, and the first one sees one."""
    lengths = [(s.query_len, s.context_len) for s in case.sequences if s.query_len]
    seeing = [(case.visibility.rows_with_keys(*pair), pair[0]) for pair in lengths]
    return any(rows.stop < query_len and len(rows) > 0 for rows, query_len in seeing)


FREEDOMS: Final[dict[Family, Freedoms]] = {
    "unified": OF_ALL | OF_UNIFIED,
    "paged": OF_ALL | OF_SPLIT | OF_DECODE,
    "context": OF_ALL | OF_SPLIT | OF_NEW_TOKENS,
    "chunked": OF_ALL | OF_SPLIT | OF_NEW_TOKENS,
    "extend": {name: shows for name, shows in OF_ALL.items() if name not in NOT_OF_EXTEND}
    | OF_NEW_TOKENS
    | OF_MASKS
    | {"slots_far_into_the_caches": OF_TOKENS["slots_far_into_the_caches"]},
    "mla_decode": OF_LATENT | {"far_slots": lambda c: "cache_slot" in far_axes(c)},
    "token_decode": OF_TOKENS,
    "varlen": OF_VARLEN,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_cases_use_every_freedom_of_the_contract(family: Family) -> None:
    missing = FREEDOMS[family].copy()

    def attempt(case: AttentionCase, _: str | None) -> None:
        for name in [name for name, shows in missing.items() if shows(case)]:
            del missing[name]

    for number in range(ROUNDS_OF_EACH_FAMILY):
        if not missing:
            break
        schedule.play_round(load_target(family).domain, derived_seed(3, 0, number), ON_CPU.cases, attempt)
    assert not missing


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_target_without_declared_freedoms_gets_none(family: Family) -> None:
    features = FEATURES_OF[family] - UNPUBLISHED_FEATURES
    strategy, random = cases(Domain(family=family, features=features)), Random(3)
    own = {
        "scales_of_zero", "negative_scales", "softmax_scale_of_zero", "out_dtype", "fp8_out_kind", "fp8_kinds",
        "float16_slopes", "float64_sinks", "float64_bias", "bias_column_stride", "bias_by_columns", "pieces",
        "head_stride", "new_value_strides", "table_rows", "out_rows", "expanded_scales", "no_starts", "cache_names",
        "windows_of_all", "far_q", "far_out", "far_table", "far_slots", "far_heads", "far_dims", "far_new_tokens",
        "far_bias_rows", "far_bias_columns", "length_of_zero", "top_left", "rows_of_nothing", "poison_between_keys",
        "no_keys", "some_keys", "window_behind_the_keys", "lse_with_gaps", "larger_values", "far_keys",
    }  # fmt: skip
    drawn = [Sample(random).draw(strategy) for _ in range(400)]
    assert {name for name in own & FREEDOMS[family].keys() for case in drawn if FREEDOMS[family][name](case)} == set()
