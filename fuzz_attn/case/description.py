"""Description: a case in words, one line for each part.

Only the defaults of memory and poison are left out, so two different cases have different descriptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from fuzz_attn.case.aspects import FEATURES, FLAGS, RECIPES, words_of
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.contract_trial import lines_of
from fuzz_attn.case.families import FAMILIES, SIMPLEST
from fuzz_attn.case.parts import FAR_AXES, CallForm, DTypeName, Sequence, Strides, is_fp8
from fuzz_attn.case.paths import in_words
from fuzz_attn.case.plain import counted, shortest
from fuzz_attn.case.recipes import Override, PoisonRecipe

Line = tuple[str, str]

_CACHES: Final = {
    "separate": "",
    "kv_first": "K and V in one allocation [2, num_blocks, ...]",
    "blocks_first": "K and V in one allocation [num_blocks, 2, ...]",
    "heads_first": "caches with heads before slots",
}
_SCALES: Final = {
    "scalar": "scales as tensors without dimensions",
    "expanded": "scales expanded over sequences and heads",
    "omitted": "scales of 1 omitted",
}
_SLOTS: Final = {"nan": "NaN", "inf": "Inf", "negative_inf": "-Inf", "huge": "the largest number", "zero": "0"}
POISONED: Final = {"keys": "dead keys", "values": "dead values", "table": "dead table entries"}
"""The parts of the input that hold poison which no kernel may read, and their words."""
_ENTRIES: Final = {"zero": "0", "negative": "-1", "one_past": "num_blocks", "huge": "2**31 - 1"}


def describe(case: AttentionCase) -> list[Line]:
    """Return (what, words) pairs, in the order in which a person would explain the case."""
    return [
        *_family(case),
        *_batch(case),
        *_heads(case),
        ("types", _types(case)),
        ("keys", _packed(case)) if FAMILIES[case.family].cache.is_packed else ("pages", _pages(case)),
        *_scores(case),
        ("numbers", f"scores {case.scores.words()}, values {case.values.words()}, seed {case.seed}"),
        *_visibility(case),
        *((override.tensor, _override(override)) for override in case.overrides),
        *_memory(case),
        *_poison(case.poison),
        *_form(case.form),
        ("launch", _launch(case)),
        *lines_of(case),
    ]


def _visibility(case: AttentionCase) -> Iterator[Line]:
    if case.near_uniform:
        slopes = f", the slopes of most heads by {1 << case.max_seq_len.bit_length()}" * (case.alibi is not None)
        yield "near-uniform", f"the queries of most rows divided by 64{slopes}"
    if case.equal_heads:
        biases = {"slopes": case.alibi, "sinks": case.sinks}
        zeros = [name for name, recipe in biases.items() if recipe is not None]
        yield "equal heads", f"{' and '.join(['the queries', *zeros])} of most heads are 0"
    if case.key_marks:
        yield "key marks", "every other column of V marks the keys"


def _family(case: AttentionCase) -> Iterator[Line]:
    flags = words_of([name for name in FLAGS if getattr(case, name)])
    if flags or case.family != SIMPLEST:
        yield "family", ", ".join([FAMILIES[case.family].words, *flags])


def _batch(case: AttentionCase) -> Iterator[Line]:
    if not case.sequences:
        yield "batch", "no sequences"
    first = 0
    for sequence, run in groupby(case.sequences):
        last = first + len(list(run)) - 1
        words = _lengths(sequence) if FAMILIES[case.family].any_lengths else _sequence(sequence)
        yield (f"sequence {first}" if first == last else f"sequences {first} to {last}"), words
        first = last + 1
    if case.padded_tokens:
        yield "padding", f"{counted(case.padded_tokens, 'more row')} in q and out than tokens"


def _sequence(sequence: Sequence) -> str:
    if not sequence.query_len:
        return f"empty: no query tokens, {sequence.context_len} in the cache"
    if sequence.has_no_key:
        return "of length 0: a row of q and out, and no key"
    return f"{counted(sequence.query_len, 'query token')}, {sequence.context_len} in the cache before"


def _lengths(sequence: Sequence) -> str:
    """Return the lengths of a sequence whose keys are not those of a context and of its new tokens."""
    return f"{counted(sequence.query_len, 'query token')}, {counted(sequence.seq_len, 'key')}"


def _heads(case: AttentionCase) -> Iterator[Line]:
    heads = case.heads
    values = f", values of {heads.value_size}" * bool(heads.value_size)
    query, shared = counted(heads.num_query_heads, "query head"), counted(heads.num_kv_heads, "KV head")
    yield "heads", f"{query} on {shared} (group of {heads.num_queries_per_kv}), head size {heads.head_size}{values}"


def _types(case: AttentionCase) -> str:
    dtypes, scales = case.dtypes, case.scales
    if dtypes.q == dtypes.kv == dtypes.out and not is_fp8(dtypes.q):
        return f"q, cache and output {dtypes.q}"
    cache = f" with k_scale {shortest(scales.k)} and v_scale {shortest(scales.v)}" if is_fp8(dtypes.kv) else ""
    return f"q {_scaled(dtypes.q, scales.q)}, cache {dtypes.kv}{cache}, output {_scaled(dtypes.out, scales.out)}"


def _scaled(dtype: DTypeName, scale: float) -> str:
    return f"{dtype} with scale {shortest(scale)}" if is_fp8(dtype) else dtype


def _packed(case: AttentionCase) -> str:
    pages = case.pages
    words = ["packed, one sequence after the other"]
    words += [f"each in a multiple of {pages.block_size} rows"] * (pages.block_size > 1)
    words += [f"{counted(pages.spare_blocks * pages.block_size, 'row')} behind the last"] * bool(pages.spare_blocks)
    return ", ".join(words)


def _pages(case: AttentionCase) -> str:
    pages = case.pages
    words = [f"{counted(pages.block_size, 'slot')} each"]
    words += ["in a random order"] * pages.permuted + ["one used twice by each sequence"] * pages.repeated
    first = "the first" if pages.shared_prefix == 1 else f"the first {pages.shared_prefix}"
    words += [f"{first} shared by all sequences"] * bool(pages.shared_prefix)
    words += [f"{counted(pages.spare_blocks, 'spare page')}"] * bool(pages.spare_blocks)
    words += [f"numbered from {pages.first_block}"] * bool(pages.first_block)
    words += [f"a table {counted(pages.extra_columns, 'column')} wider than needed"] * bool(pages.extra_columns)
    return ", ".join(words)


def _scores(case: AttentionCase) -> Iterator[Line]:
    yield "scale", f"softmax_scale {_softmax_scale(case)}"
    if case.softcap:
        yield "soft cap", shortest(case.softcap)
    window = f"window of {counted(case.window, 'key')}" if case.window else "no window"
    yield "mask", f"{case.mask.words()}, {window}"
    for name in RECIPES:
        recipe = getattr(case, name)
        if recipe is not None:
            yield FEATURES[name].line or FEATURES[name].words, recipe.words()


def _softmax_scale(case: AttentionCase) -> str:
    if case.softmax_scale == case.heads.head_size**-0.5:
        return f"{case.softmax_scale:g}, 1 / sqrt(head size)"
    return shortest(case.softmax_scale)


def _override(override: Override) -> str:
    place = f"sequence {override.sequence}, position {override.position}, head {override.head}"
    return f"{shortest(override.value)} set at {place}, column {override.column}"


def _memory(case: AttentionCase) -> Iterator[Line]:
    strides = case.strides
    if strides == Strides():
        return
    padded = "page" if FAMILIES[case.family].cache.is_split else "row"
    gaps = {
        "q token": strides.q_token,
        "q head": strides.q_head,
        "out token": strides.out_token,
        "out head": strides.out_head,
        f"cache {padded}": strides.cache_slot,
        f"{padded} of V": strides.value_slot,
        "table row": strides.block_table,
        "new key's token": strides.new_token,
        "new key's head": strides.new_head,
        "new value's token, in addition": strides.new_value_token,
        "new value's head, in addition": strides.new_value_head,
        "head of a page": strides.page_head,
        "chunk of a page's keys": strides.key_chunk,
        "slot of a page's keys": strides.key_slot,
        "dimension of a page's values": strides.value_dim,
    }
    apart = "each cache in memory of its own, as values have their own size, instead of "
    words = [apart * (case.cache_layout.arrangement != strides.cache) + _CACHES[strides.cache]]
    words *= strides.cache != "separate"
    words += [f"gap of {size} after each {name}" for name, size in gaps.items() if size]
    words += [f"keys in pieces of {strides.key_piece}"] * bool(strides.key_piece)
    words += [f"{FAR_AXES[name]} spread over 2^31 elements" for name in strides.far]
    yield "memory", ", ".join(words)


def poison_in_words(poison: PoisonRecipe, part: str) -> str:
    """Return what one part of ``POISONED`` holds."""
    words = _ENTRIES[poison.table] if part == "table" else _SLOTS[getattr(poison, part)]
    return f"{words} in {POISONED[part]}"


def _poison(poison: PoisonRecipe) -> Iterator[Line]:
    if poison == PoisonRecipe():
        return
    slots = ", ".join(poison_in_words(poison, part) for part in ("keys", "values"))
    if poison.keys == poison.values:
        slots = f"{_SLOTS[poison.keys]} in dead keys and values"
    second = ", the second NaN in the output" if poison.out else ""
    yield "poison", f"{slots}, {poison_in_words(poison, 'table')}{second}"


def _form(form: CallForm) -> Iterator[Line]:
    rows = {"the table": form.extra_table_rows, "out": form.extra_output_rows, "the new keys": form.extra_new_rows}
    words = [_SCALES[form.scales]] if form.scales in _SCALES else []
    words += [f"window in alternative form {form.window}"] * bool(form.window)
    words += [f"cache type by alternative name {form.cache_name}"] * bool(form.cache_name)
    words += ["query starts omitted"] * (not form.query_starts)
    words += [f"{counted(count, 'more row')} in {name}" for name, count in rows.items() if count]
    if words:
        yield "call", ", ".join(words)


def _launch(case: AttentionCase) -> str:
    launch = case.launch
    words = [{"auto": "the launcher's choice", "2d": "2D kernel", "3d": "3D kernel"}[launch.path]]
    words += [counted(launch.num_segments, "segment")] * bool(launch.num_segments)
    words += [f"tiles of {counted(launch.tile_size, 'key')}"] * bool(launch.tile_size)
    words += [f"num_warps={launch.num_warps}"] * bool(launch.num_warps)
    words += [f"num_stages={launch.num_stages}"] * bool(launch.num_stages)
    words += [f"configuration {launch.configuration} of the autotuner"] * bool(launch.configuration)
    words += [in_words(launch.arguments)] * bool(launch.arguments)
    return ", ".join(words)
