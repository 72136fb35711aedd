"""Features: strategies of windows, ALiBi slopes, query-query biases, sinks, soft caps, scales and masks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import msgspec
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.aspects import MASK_FEATURES, STATED, Feature
from fuzz_attn.case.domain import ALIBI_KINDS, Domain
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import DTypeName, DTypes, Scales, Sequence, is_fp8
from fuzz_attn.case.recipes import (
    SIMPLEST,
    AlibiKind,
    AlibiRecipe,
    Chunks,
    Custom,
    Lookahead,
    Mask,
    MaskBits,
    MaskKind,
    QQBiasRecipe,
    SinkRecipe,
)
from fuzz_attn.strategies.draws import around, composite, sampled_from

HUGE_WINDOW, LARGEST_WINDOW = 2**20, 2**31 - 2
TINY_WINDOWS = (1, 2, 3)
LONG_SEQUENCE = 1024
"""In longer sequences, windows end beside powers of two from here on too."""


def windows(
    *,
    sequences: tuple[Sequence, ...] = (),
    block_size: int = 16,
    tile_sizes: tuple[int, ...] = (16, 32, 64),
) -> st.SearchStrategy[int]:
    """Return a strategy of windows of at least 1 key; shrinks towards 1, the row's own key.

    The windows end at and beside the edges of pages, tiles, contexts and whole sequences; some are too long to matter,
    one as long as an int32 can say. Where a sequence has several query tokens, many windows hide a tile from a later
    token that an earlier token of the same block still sees, so that one row's softmax starts later than the others'.
    """
    if block_size < 1 or min(tile_sizes, default=1) < 1:
        raise InvalidArgument(f"{block_size=} and {tile_sizes=} must be at least 1")
    longest = (lambda sequence: sequence.seq_len), (lambda sequence: (sequence.query_len, sequence.seq_len))
    ends = {sequences[0], *(max(sequences, key=length) for length in longest)} if sequences else set()
    return _windows(frozenset(ends), block_size, tile_sizes)


@lru_cache(maxsize=4096)
def _windows(ends: Iterable[Sequence], block_size: int, tile_sizes: tuple[int, ...]) -> st.SearchStrategy[int]:
    longest = max((end.seq_len for end in ends), default=0)
    own = {edge for end in ends for edge in around(end.context_len, end.seq_len, end.query_len, end.seq_len // 2)}
    powers = around(
        *(
            1 << place
            for place in range(LONG_SEQUENCE.bit_length() - 1, longest.bit_length())
            if longest > LONG_SEQUENCE
        )
    )
    edges = {*TINY_WINDOWS, *around(block_size, *tile_sizes), *own, *powers} - {0}
    inside = sorted(edge for edge in edges if edge < longest or not longest)
    long = [edge for edge in inside if edge >= LONG_SEQUENCE]
    inside += [*long, *(edge for edge in long if 2 * edge > longest)] * 6
    crossing = sorted({window for end in ends for window in _crossing(end, tile_sizes)})
    outside = (longest, longest + 1, HUGE_WINDOW, LARGEST_WINDOW) if longest else TINY_WINDOWS
    repeated = crossing * (2 * len(inside) // max(1, len(crossing)) + 1)
    return sampled_from(sorted((*TINY_WINDOWS, *inside, *inside, *repeated, *outside)))


def hides_tile(window: int, sequences: Iterable[Sequence], tile_sizes: Iterable[int]) -> bool:
    """Return whether a window hides a tile from a sequence's last query token, but not from the one before."""
    return any(window in _crossing(sequence, tile_sizes) for sequence in sequences)


def _crossing(sequence: Sequence, tile_sizes: Iterable[int]) -> range:
    """Return the windows that begin at a tile's edge for the last query token, and one key before it for another.

    An edge of the largest tile that the sequence is longer than is one of the smaller tiles too.
    """
    tile = max((tile for tile in tile_sizes if tile < sequence.seq_len), default=0)
    if not tile or sequence.query_len < 2:
        return range(0)
    return range(sequence.seq_len % tile or tile, sequence.seq_len, tile)


ALIBI_RECIPES = (
    AlibiRecipe(),
    AlibiRecipe(kind="arbitrary"),
    AlibiRecipe(kind="arbitrary"),
    AlibiRecipe(kind="standard", scale=16.0),
    AlibiRecipe(kind="negative"),
    AlibiRecipe(kind="negative", scale=16.0),
    AlibiRecipe(kind="arbitrary", scale=4.0),
    AlibiRecipe(kind="zero"),
)
"""Some are scaled up, as the standard slopes of one or two heads are too small to show over short contexts."""

POSITIVE_RECIPES = (AlibiRecipe(kind="positive"), AlibiRecipe(kind="positive", scale=4.0))
"""For targets that take no arbitrary slopes, which are positive too."""


@lru_cache(maxsize=64)
def alibi_slopes(*, kinds: tuple[AlibiKind, ...] = ALIBI_KINDS) -> st.SearchStrategy[AlibiRecipe]:
    """Return a strategy of slope recipes of some kinds, in float32; shrinks towards the standard ones."""
    recipes = ALIBI_RECIPES if "arbitrary" in kinds else (*ALIBI_RECIPES, *POSITIVE_RECIPES)
    return sampled_from([each for each in recipes if each.kind in kinds])


Order: TypeAlias = Literal["rows", "columns", "one_row", "one_column"]

QQ_BIAS_RECIPES = (
    QQBiasRecipe(),
    QQBiasRecipe(),
    QQBiasRecipe(scale=4.0),
    QQBiasRecipe(kind="tree"),
    QQBiasRecipe(kind="tree"),
    QQBiasRecipe(row_padding=3),
    QQBiasRecipe(extra_columns=2),
    QQBiasRecipe(extra_columns=-1),
    QQBiasRecipe(extra_columns=-3, scale=4.0),
    QQBiasRecipe(extra_rows=1),
    QQBiasRecipe(extra_rows=2, extra_columns=3, row_padding=1),
    QQBiasRecipe(kind="tree", row_padding=8),
    QQBiasRecipe(kind="tree", extra_columns=2, row_padding=1),
    QQBiasRecipe(kind="tree", extra_columns=-1),
    QQBiasRecipe(kind="tree", extra_rows=2),
    QQBiasRecipe(kind="zero", extra_columns=-1),
    QQBiasRecipe(kind="diagonal"),
    QQBiasRecipe(kind="diagonal"),
    QQBiasRecipe(kind="diagonal"),
    QQBiasRecipe(kind="diagonal"),
    QQBiasRecipe(kind="diagonal", extra_columns=-1),
)
"""Dense and tree masks: square, wider and narrower than the queries, with extra rows, slices of a wider matrix.

With a diagonal mask no token sees another one, so whole tiles and segments have no visible key for any row."""


_ORDERS: tuple[Order, ...] = ("rows",) * 6 + ("columns", "columns", "one_row", "one_column")
_STEPS = (1,) * 7 + (2, 3, 16)

_QQ_BIAS_DRAWS = sampled_from(QQ_BIAS_RECIPES)
_STRIDES = sampled_from(tuple((order, step) for step in _STEPS for order in _ORDERS))


@composite
def qq_biases(draw: st.DrawFn, *, inner_strides: bool = False) -> QQBiasRecipe:
    """Return a strategy of bias recipes; shrinks towards a dense square float32 matrix, row by row.

    With ``inner_strides`` some are stored column by column, with gaps, or expanded. Masks cannot be expanded: they are
    stored column by column instead.
    """
    recipe, (order, step) = draw(_QQ_BIAS_DRAWS), draw(_STRIDES)
    if order != "rows" and recipe.kind not in ("dense", "zero"):
        order = "columns"
    return msgspec.structs.replace(recipe, order=order, step=step) if inner_strides else recipe


SINK_RECIPES = (
    SinkRecipe(),
    SinkRecipe(),
    SinkRecipe(),
    SinkRecipe(level=3.0),
    SinkRecipe(level=3.0),
    SinkRecipe(level=-3.0),
    SinkRecipe(spread=4.0),
    SinkRecipe(level=12.0),
    SinkRecipe(level=6.0, spread=12.0),
    SinkRecipe(level=-20.0),
    SinkRecipe(level=-110.0),
    SinkRecipe(level=-1e4, spread=0.0),
    SinkRecipe(spread=0.0),
)
"""Among the logits, far above them, far below, and so far below that they have no effect. Sinks above 15 stand beside
lower ones: with such a sink the weights are 0 in a half type and hide the keys."""


_SINK_DRAWS = sampled_from(SINK_RECIPES)


def sinks() -> st.SearchStrategy[SinkRecipe]:
    """Return a strategy of recipes of float32 sinks; shrinks towards sinks among the logits."""
    return _SINK_DRAWS


SOFT_CAPS = (1.0, 10.0, 30.0, 50.0, 0.5, 0.125, 5.5, 4096.0)
"""Caps of models (30, 50), caps that bend every logit, and tiny caps: there wide scores make ``|s / c|`` exceed 88,
where the exponential of a float32 overflows. One cap is far above all logits and must not change them."""


def soft_caps() -> st.SearchStrategy[float]:
    """Return a strategy of positive soft caps; shrinks towards 1."""
    return sampled_from(SOFT_CAPS)


@lru_cache(maxsize=64)
def terms(domain: Domain) -> dict[Feature, st.SearchStrategy[Any]]:
    """Return the strategy of each compiled feature of a domain that is one field of a case and follows from no other.

    A case has a feature where its compile key says so. A new feature is one more entry, the last.
    """
    drawn: dict[Feature, st.SearchStrategy[Any]] = {
        "softcap": soft_caps(),
        "alibi": alibi_slopes(kinds=domain.alibi_kinds),
        "qq_bias": qq_biases(inner_strides=domain.allows("inner_strides")),
        "sinks": sinks(),
    }
    stated = {name: sampled_from((getattr(domain, field),)) for name, field in STATED.items() if domain.allows(name)}
    return drawn | stated


FP8_SCALES = (1.0, 2.0, 0.5, 0.3, 1.7, 3.0, 0.125, 11.0, 2.0**5, 2.0**-8)
"""Powers of two, other numbers, and both extremes; independent for K and V, so that they are seldom equal."""

OTHER_SIGNS = (-1.0, -0.3, -2.0, 0.0)
"""Scales of other signs than those in serving. The output is divided by its scale, which is never 0."""

SMALL_SCALES: Final[dict[DTypeName, float]] = {"float16": 2.0**-15, "bfloat16": 2.0**-30, "float32": 2.0**-30}
"""Scales of V by the type of the queries, in which a kernel may hold the scaled values. The output's scale is the same
then, so that its quotient is as usual. With scales as large, the bound would hide a key."""

_FP8_SCALES = sampled_from(FP8_SCALES)
_SMALL = sampled_from((False,) * 11 + (True,))
_OTHER_SIGNS = sampled_from(OTHER_SIGNS)
_NEGATIVE = sampled_from(tuple(scale for scale in OTHER_SIGNS if scale))
_RARELY = sampled_from((False,) * 15 + (True,))
_ALL_ONE = sampled_from((Scales(),))


def softmax_scales(*, head_size: int = 16, other_signs: bool = False) -> st.SearchStrategy[float]:
    """Return a strategy of softmax scales, mostly ``head_size ** -0.5``; shrinks towards it.

    All are positive, unless ``other_signs`` are allowed.
    """
    if head_size < 1:
        raise InvalidArgument(f"{head_size=} must be at least 1")
    return _softmax_scales(head_size, other_signs)


@lru_cache(maxsize=1024)
def _softmax_scales(head_size: int, other_signs: bool) -> st.SearchStrategy[float]:
    usual = head_size**-0.5
    rare = (-usual, -usual, -1.0, -1.0, 0.0) if other_signs else (usual,) * 5
    return sampled_from((*(usual,) * 68, *rare, *(1.0,) * 5, *(1.0 / head_size,) * 5, *(0.1,) * 5))


def scales(
    *,
    dtypes: DTypes = DTypes(),  # noqa: B008 (frozen)
    fp8_q_scales: bool = True,
    other_signs: bool = False,
) -> st.SearchStrategy[Scales]:
    """Return a strategy of the scales of one-byte types; shrinks towards 1, the scale of every other type.

    Without ``fp8_q_scales`` all are 1 for one-byte queries. With ``other_signs`` a few are negative or 0.
    """
    if is_fp8(dtypes.q) and not fp8_q_scales:
        return _ALL_ONE
    return _cached_scales(dtypes, other_signs)


@lru_cache(maxsize=256)
def _cached_scales(dtypes: DTypes, other_signs: bool) -> st.SearchStrategy[Scales]:
    return _scales(dtypes, other_signs)


@composite
def _scales(draw: st.DrawFn, dtypes: DTypes, other_signs: bool) -> Scales:
    def scale(dtype: DTypeName, others: st.SearchStrategy[float]) -> float:
        if not is_fp8(dtype):
            return 1.0
        usual, rare, other = draw(_FP8_SCALES), draw(_RARELY), draw(others)
        return other if rare and other_signs else usual

    kv = dtypes.kv
    found = Scales(
        q=scale(dtypes.q, _OTHER_SIGNS),
        k=scale(kv, _OTHER_SIGNS),
        v=scale(kv, _OTHER_SIGNS),
        out=scale(dtypes.out, _NEGATIVE),
    )
    if not is_fp8(kv) or dtypes.q not in SMALL_SCALES or not draw(_SMALL):
        return found
    small = SMALL_SCALES[dtypes.q]
    return msgspec.structs.replace(found, v=small, out=small if is_fp8(dtypes.out) else found.out)


def mask_kinds(*, domain: Domain) -> tuple[MaskKind, ...]:
    """Return the kinds of masks of a domain, the simplest first."""
    return tuple(kind for kind in SIMPLEST if all(map(domain.allows, MASK_FEATURES[kind])))


def masks(
    *,
    kind: MaskKind = "causal",
    sequences: tuple[Sequence, ...] = (),
    tile_sizes: tuple[int, ...] = (16, 32, 64),
    domain: Domain = Domain(),  # noqa: B008 (frozen)
) -> st.SearchStrategy[Mask]:
    """Return a strategy of masks of a kind; shrinks towards its simplest one.

    Chunks and the keys seen behind a row's own end at and beside the edges of tiles and sequences; some rows see all
    keys behind theirs, as many as an int32 can say.
    """
    longest = max((sequence.seq_len for sequence in sequences), default=1)
    empty, poisoned = domain.allows("empty_rows"), domain.allows("hidden_poison")
    edges = tuple(sorted(edge for edge in around(*tile_sizes) if 0 < edge < longest))
    if kind == "lookahead" and FAMILIES[domain.family].cache.is_packed:
        return _two_sided(edges, longest)
    return _masks(kind, edges, longest, empty, poisoned)


@lru_cache(maxsize=4096)
def _two_sided(edges: tuple[int, ...], longest: int) -> st.SearchStrategy[Mask]:
    """Return windows of two sides as :func:`_masks` does, of which a fifth or more end with a row's own key."""
    sizes = (1, 2, 3, *edges, max(1, longest // 2), max(1, longest - 1), longest, LARGEST_WINDOW)
    return sampled_from([Lookahead(keys) for keys in (*sizes, *(0,) * (1 + len(sizes) // 4))])


def _far_ahead(longest: int) -> list[int]:
    """Return numbers of keys beside powers of two beyond all tiles, and between them, that hide something."""
    powers = [1 << place for place in range(7, longest.bit_length())]
    return sorted(keys for keys in (*around(*powers), *(power * 3 // 2 for power in powers)) if keys < longest) * 4


@lru_cache(maxsize=4096)
def _masks(
    kind: MaskKind, edges: tuple[int, ...], longest: int, empty: bool, poisoned: bool
) -> st.SearchStrategy[Mask]:
    sizes = (1, 2, 3, *edges, max(1, longest // 2), max(1, longest - 1))
    if kind == "lookahead":
        return sampled_from([Lookahead(keys) for keys in (*sizes, *_far_ahead(longest), 0, longest, LARGEST_WINDOW)])
    if kind == "chunks":
        return sampled_from([Chunks(size) for size in (*sizes, longest + 1)])
    if kind in ("custom", "custom_alone"):
        bits: tuple[MaskBits, ...] = ("random", "random", "tree", "tree", "blocks", "bottom_right")
        flags = [(False, False), *[(False, poisoned)] * 2, (empty, False), (empty, poisoned)]
        return sampled_from([Custom(each, kind == "custom", *flag) for each in bits for flag in flags])
    return sampled_from([SIMPLEST[kind]])
