"""Cases: whole inputs of one attention call, within the domain of a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from hypothesis import strategies as st
from msgspec.structs import replace

from fuzz_attn.case.aspects import FLAGS, Feature
from fuzz_attn.case.attention_case import MAX_TOTAL_ELEMENTS, AttentionCase, CompileKey
from fuzz_attn.case.domain import Domain, beside
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import LARGEST_FIRST_BLOCK, CallForm, FarAxis, Scales, Sequence, Strides, is_fp8
from fuzz_attn.case.recipes import (
    CAUSAL,
    HeavyScores,
    LevelScores,
    QQBiasRecipe,
    ScoreRecipe,
    SinkRecipe,
    UniformScores,
)
from fuzz_attn.strategies.batches import MOST_PADDED_TOKENS, batches
from fuzz_attn.strategies.compile_keys import compile_keys
from fuzz_attn.strategies.draws import composite, sampled_from
from fuzz_attn.strategies.dtypes import one_byte_operands
from fuzz_attn.strategies.features import hides_tile, masks, scales, softmax_scales, terms, windows
from fuzz_attn.strategies.heads import heads_of
from fuzz_attn.strategies.kernel_variants import KernelForm, KernelVariant, kernel_variants, variant_of
from fuzz_attn.strategies.launches import call_forms
from fuzz_attn.strategies.memory_layouts import (
    LARGE_OFFSETS,
    far_axes,
    in_order,
    memory_layouts,
    page_layouts,
    with_far_axes,
    with_row_length,
)
from fuzz_attn.strategies.values import LONG, MEDIUM, is_low, overrides, poisons, score_recipes, value_recipes

_CALL_FORMS = call_forms()
_VARIANTS = kernel_variants()
_POISONS = poisons()
_PADDED_TOKENS = sampled_from((0, 0, 0, 0, 1, 2, MOST_PADDED_TOKENS))
_NEARLY_ALWAYS = sampled_from((False,) + (True,) * 31)
"""Nearly all cases are near-uniform and have key marks, since a case that hides its keys finds little."""
_ABOVE = sampled_from((False,) * 15 + (True,))
ABOVE_ALL: Final = 110.0
"""The level of a sink so far above all logits that its exponential relative to them overflows in float32: only the
log-sum-exp shows that, as all weights are 0."""
_MARKED = sampled_from((False,) + (True,) * 255)
"""Nearly all cases with equal heads have key marks, because there only the marks show each key of a long sequence."""
_EQUAL_ABOVE = sampled_from((MAX_TOTAL_ELEMENTS,) + (LONG,) * 63 + (MEDIUM,) * 192)
"""The keys above which a case has heads of equal weights: any other weights, or their error bound, hide many keys."""
_BYTES = sampled_from((False, False, True))
_STALE = sampled_from((False, True))
_SEEDS = sampled_from(range(2**12))
_FLAGS: Final[dict[Feature, Any]] = dict.fromkeys(FLAGS, True)
"""The value of each feature that is only present or not: those that kernels are compiled for are in the key."""
_DENSE = Strides()
_USUAL = CallForm()
_OFFSETS = sampled_from((0,) * 38 + LARGE_OFFSETS)
_FAR = {
    (family, inner, lse): far_axes(family, inner_strides=inner, lse=lse)
    for family in FAMILIES
    for inner in (False, True)
    for lse in (False, True)
}


class FeaturesLeft:
    """The features that a case may still get: those of its domain that are supported beside what it has."""

    def __init__(self, domain: Domain, present: Iterable[Feature]) -> None:
        self._present = set(present)
        self.domain = beside(domain, self._present)

    def allows(self, feature: Feature) -> bool:
        """Return whether the case may get a feature."""
        return self.domain.allows(feature)

    def note(self, feature: Feature, present: bool) -> None:
        """Note whether the case got a feature."""
        if present:
            self._present.add(feature)
            self.domain = beside(self.domain, self._present)


def cases(
    domain: Domain = Domain(),  # noqa: B008 (frozen)
    *,
    keys: Iterable[CompileKey] | None = None,
    layouts: Iterable[Strides] | None = None,
    sequences: tuple[Sequence, ...] | None = None,
    variants: int | None = None,
    form: KernelForm | None = None,
) -> st.SearchStrategy[AttentionCase]:
    """Return a strategy of cases of a domain; shrinks towards one token of one float32 head of 16, with no feature.

    The compile key is drawn first, from ``key_pool(domain)`` or from ``keys`` where given, so that a campaign can make
    many cases of few keys. Strided cases take one of ``layouts`` where given. All have the same ``sequences`` where
    given. A few cases have simpler keys and layouts, so that shrinking can drop features. ``variants`` is a seed for
    campaigns, which spend most of their time on new kernels: all cases of a key have the variant that it chooses, and
    no key or layout is simplified, because campaigns shrink cases as data. With a ``form`` all cases have it, and
    nothing is simplified either. Only with one of these there are batches as schedulers make them. Raises
    InvalidArgument for keys outside of the domain.
    """
    inner, simpler = domain.allows("inner_strides"), variants is None and form is None
    strides = memory_layouts(family=domain.family, layouts=layouts, inner_strides=inner, simpler=simpler)
    chosen = compile_keys(domain=domain, keys=keys, simpler=simpler)
    return _cases(domain, chosen, strides, terms(domain), sequences, variants, form)


@composite
def _cases(
    draw: st.DrawFn,
    domain: Domain,
    keys: st.SearchStrategy[CompileKey],
    strides: st.SearchStrategy[Strides],
    features: Mapping[Feature, st.SearchStrategy[Any]],
    batch: tuple[Sequence, ...] | None,
    variants: int | None,
    form: KernelForm | None,
) -> AttentionCase:
    key, campaign = draw(keys), variants is not None or form is not None
    left = FeaturesLeft(domain, key.features)
    variant = (form.variant if form else _variant(draw, key, variants)).within(left.domain)
    heads = draw(heads_of(key))
    heads = replace(heads, num_kv_heads=form.num_kv_heads) if form else heads
    lengths = batches(key=key, num_kv_heads=heads.num_kv_heads, domain=left.domain, campaign=campaign)
    sequences = _promised(draw(lengths) if batch is None else batch, domain)
    left.note("empty_sequences", not all(sequence.query_len for sequence in sequences) or not sequences)
    # Features are drawn whether they are on or not: the shrinker needs the same choices in every case.
    tiles = (key.launch.tile_size,) if key.launch.tile_size else domain.tile_sizes
    fitting = windows(sequences=sequences, block_size=key.block_size, tile_sizes=tiles)
    window = draw(sampled_from(form.windows) if form and form.windows else fitting)
    drawn = {name: draw(feature) for name, feature in features.items()} | _FLAGS
    one_byte = one_byte_operands(key.dtypes)
    layout = _DENSE
    if left.allows("strides"):
        layout = _in_pieces(form.strides if form else draw(strides), variant.key_piece, heads.head_size)
    far: tuple[FarAxis, ...] = ()
    if left.allows("far_axes") and left.allows("strides"):
        far = draw(_FAR[key.family, left.allows("inner_strides"), key.has("lse")])
    left.note("far_axes", bool(far))
    left.note("strides", bool(far) or layout != _DENSE)
    offset = draw(_OFFSETS) if left.allows("large_offsets") else 0
    offset *= not any(name.startswith("cache_") for name in far)
    left.note("large_offsets", offset > 0)
    cache = FAMILIES[key.family].cache.layout(heads, key.block_size, key.dtypes.kv, layout)
    page, signs = max(cache.page_strides), domain.allows("scale_signs")
    equal = max((sequence.seq_len for sequence in sequences), default=0) > draw(_EQUAL_ABOVE)
    segments = key.launch.num_segments > 1
    hidden_tile = key.has("window") and hides_tile(window, sequences, tiles)
    recipes = score_recipes(
        window=key.has("window"),
        softcap=drawn["softcap"] if key.has("softcap") else 0.0,
        sinks=key.has("sinks"),
        segments=segments,
        one_byte=one_byte,
        long=equal,
        hidden_tile=hidden_tile,
    )
    scores, near_uniform = draw(recipes), draw(_NEARLY_ALWAYS)
    uint8_cache = left.allows("uint8_cache") and is_fp8(key.dtypes.kv) and draw(_BYTES)
    left.note("uint8_cache", uint8_cache)
    stale_cache = left.allows("stale_cache") and draw(_STALE)
    left.note("stale_cache", stale_cache)
    ragged_splits = segments and left.allows("ragged_splits") and draw(_STALE)
    left.note("ragged_splits", ragged_splits)
    bias = _exact(drawn["qq_bias"]) if equal else drawn["qq_bias"]
    drawn["alibi"] = replace(drawn["alibi"], dtype=variant.slopes)
    drawn["qq_bias"] = replace(bias, dtype=variant.bias)
    above = key.has("lse") and key.has("sinks") and draw(_ABOVE)
    drawn["sinks"] = replace(_at_level(drawn["sinks"], scores, above=above), dtype=variant.sinks)
    numbered = key.block_size if FAMILIES[key.family].cache.in_one_row else 1  # slots, or pages
    first_block = 0 if layout.cache == "kv_first" else min(-(-offset // page), LARGEST_FIRST_BLOCK // numbered)
    pages = draw(page_layouts(block_size=key.block_size, first_block=first_block))
    if form and form.divisible_rows is not None:
        longest = max((sequence.seq_len for sequence in sequences), default=0)
        columns = -(-longest // key.block_size) + layout.block_table
        pages = with_row_length(pages, columns, divisible=form.divisible_rows)
    case = AttentionCase(
        sequences=sequences,
        family=key.family,
        heads=heads,
        dtypes=key.dtypes,
        launch=key.launch,
        uint8_cache=uint8_cache,
        stale_cache=stale_cache,
        ragged_splits=ragged_splits,
        window=window if key.has("window") else 0,
        mask=CAUSAL
        if key.mask == CAUSAL.kind
        else draw(masks(kind=key.mask, sequences=sequences, tile_sizes=tiles, domain=left.domain)),
        softmax_scale=_scale(draw(softmax_scales(head_size=key.head_size, other_signs=signs)), key, domain),
        scores=scores,
        values=draw(value_recipes(exact=equal or isinstance(scores, HeavyScores | UniformScores))),
        pages=in_order(pages) if FAMILIES[key.family].cache.is_packed else pages,
        # At one level the weights are nearly equal already, and near-uniform rows would leave the level. Weights of 0
        # would no longer be 0.
        near_uniform=near_uniform and not isinstance(scores, LevelScores | HeavyScores),
        equal_heads=equal and not (hidden_tile and is_low(scores)),  # equal logits are 0, and not low
        key_marks=draw(_MARKED if equal else _NEARLY_ALWAYS),
        poison=draw(_POISONS),
        padded_tokens=draw(_PADDED_TOKENS) if left.allows("padded_tokens") else 0,
        seed=draw(_SEEDS),
        strides=layout,
        scales=_showing(draw(scales(dtypes=key.dtypes, fp8_q_scales=domain.fp8_q_scales, other_signs=signs)), equal),
        overrides=draw(overrides(sequences=sequences, heads=heads)),
        form=replace(draw(_CALL_FORMS) if domain.allows("call_forms") else _USUAL, query_starts=variant.query_starts),
        **{name: term for name, term in drawn.items() if key.has(name)},
    )
    return with_far_axes(case, far) if far else case


def _variant(draw: st.DrawFn, key: CompileKey, seed: int | None) -> KernelVariant:
    """Return the variant that a seed chooses for a key; without one, any."""
    return draw(_VARIANTS) if seed is None else variant_of(key, seed)


def _promised(sequences: tuple[Sequence, ...], domain: Domain) -> tuple[Sequence, ...]:
    """Return sequences without contexts for a target that takes none."""
    return tuple(replace(each, context_len=0) for each in sequences) if domain.no_context else sequences


def _scale(drawn: float, key: CompileKey, domain: Domain) -> float:
    """Return the softmax scale that was drawn, or the only one that a target computes."""
    return key.head_size**-0.5 if domain.usual_scale else drawn


def _exact(bias: QQBiasRecipe) -> QQBiasRecipe:
    """Return a bias that leaves equal weights equal: zeros instead of random numbers."""
    return replace(bias, kind="zero") if bias.kind == "dense" else bias


def _showing(scales: Scales, equal: bool) -> Scales:
    """Return the scales; where a case has equal heads, a scale of V that hides all its keys becomes -1."""
    return replace(scales, v=-1.0) if equal and not scales.v else scales


def _at_level(sink: SinkRecipe, scores: ScoreRecipe, *, above: bool) -> SinkRecipe:
    """Return a sink recipe above all logits, or at the level of low ones, so that both have weight; others stay."""
    if above:
        return replace(sink, level=ABOVE_ALL)
    return replace(sink, level=scores.level) if isinstance(scores, LevelScores) and is_low(scores) else sink


def _in_pieces(strides: Strides, piece: int, head_size: int) -> Strides:
    """Return the strides with keys in pieces of a size, or of the usual one where a head cannot be divided into it."""
    return strides if piece == 0 or head_size % piece else replace(strides, key_piece=piece)
