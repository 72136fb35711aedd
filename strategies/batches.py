"""Batches: the sequences of a case. Lengths are mostly small, or near multiples of pages, tiles and segments."""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.attention_case import CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import Sequence
from fuzz_attn.strategies.budgets import (
    CHUNK_TIMES,
    COSTLY_PRODUCTS,
    CROWD_TOKENS,
    LONG_CACHE_ELEMENTS,
    MAX_TIMES,
    MAX_TOKENS,
    MOST_CACHE_ELEMENTS,
    MOST_PRODUCTS,
    MOST_TIMES,
    MOST_TOKENS,
    RARE_TOKENS,
    SHELF_ELEMENTS,
    SURGE_PRODUCTS,
    SURGE_TOKENS,
    Budget,
    affords_surge,
    budget_for,
    smallest_block_q,
)
from fuzz_attn.strategies.draws import DENSE, around, composite, indices, ladder, multiples, sampled_from
from fuzz_attn.strategies.serving import may_serve, serving_batches

Kind: TypeAlias = Literal[
    "prefill", "decode", "mixed", "crowd", "long", "prompt", "many", "horde", "chunk", "surge", "vast", "convoy",
    "endless", "flood", "shelf",
]  # fmt: skip
"""Chunks without a context; one new token each; both, and chunks with a context; many tiny sequences; one long context;
a prompt of several tiles, each fully visible to some rows and invisible to others. Six kinds are rare: hundreds of
sequences, of one token or of several; a chunk of hundreds of tokens, some of them on a long context; more than a
thousand tokens of one sequence; thousands of keys; the same among tiny sequences. Two are very rare, as they take long:
up to 131,072 keys (2,048 tiles), and thousands of query tokens in many heads. On a shelf, a sequence without new tokens
has as many keys: that costs little, and all that follows has large numbers of pages, slots and rows."""


class _Size(NamedTuple):
    """What a batch of a kind may have, in the words of :func:`budget_for`."""

    times: int = 1
    tokens: int = MAX_TOKENS
    cached: int = MOST_CACHE_ELEMENTS
    products: int = MOST_PRODUCTS


_SIZES: Final[dict[Kind, _Size]] = {
    "crowd": _Size(2),
    "long": _Size(2),
    "prompt": _Size(MAX_TIMES),
    "many": _Size(MOST_TIMES, CROWD_TOKENS, LONG_CACHE_ELEMENTS, SURGE_PRODUCTS),
    "horde": _Size(MOST_TIMES, CROWD_TOKENS, LONG_CACHE_ELEMENTS, SURGE_PRODUCTS),
    "chunk": _Size(CHUNK_TIMES, RARE_TOKENS),
    "surge": _Size(MOST_TIMES, MOST_TOKENS, products=COSTLY_PRODUCTS),
    "vast": _Size(MOST_TIMES, cached=LONG_CACHE_ELEMENTS),
    "convoy": _Size(MOST_TIMES, cached=LONG_CACHE_ELEMENTS),
    "endless": _Size(MOST_TIMES),
    "flood": _Size(MOST_TIMES, MOST_TOKENS),
    "shelf": _Size(MOST_TIMES, cached=SHELF_ELEMENTS),
}
MAX_CROWD, MAX_HORDE, MAX_MANY = 40, 200, 1100
_COUNTS = sorted({100, 300, 400, 700, *around(128, 256, 512, 1000, 1024), MAX_MANY})
_MANY = sampled_from(_COUNTS)
_MOST: Final[dict[Kind, int]] = {"crowd": MAX_CROWD, "convoy": MAX_CROWD, "horde": MAX_HORDE, "many": 300}
"""The most sequences of a batch, where this is not ``MAX_SEQUENCES``; of many in a campaign it is drawn."""

MAX_SEQUENCES = 6
TYPICAL_KEYS = 130
LONG_KEYS = (257, 384, 511, 512, 513, 700, 1000, 1023, 1024, 1025, 1500, 2000)
LONGEST = (*around(2**13), 10_000, 12_000, *around(2**14), 20_000, 26_000, *around(2**15))
VAST_KEYS = sorted((*around(2**11), 3000, *around(2**12), 5000, 6000, 7000, *LONGEST * 6))
"""The longest are repeated, because few cases can afford them."""
DEEP = (1_000, 1_024, 1_100, 1_500, 2_047, 2_048, 2_049, 3_000, 4_096, 6_000)
"""Contexts of chunks of a prompt, beside short ones."""
PAGES_OF_LONG = (128, 256, 512, 1024)
MANY_SEGMENTS, MOST_OF_LONG, MANY_MERGED = 16, 4_200, 4
"""More segments get sequences of as many tiles, and small pages get tables of many columns, up to so many keys."""
PAGES_OF_VAST = (1024, 4096)
"""Pages of a sequence around which vast batches have lengths too."""
ENDLESS_KEYS = sorted((10_000, 2**14, 20_000, *around(2**15), *(50_000, *around(2**16), 100_000, 2**17 - 1, 2**17) * 4))
FLOODS = sorted((500, 700, *(1_000, *around(2**10), 1_500) * 2, *(*around(2**11), 3_000, 2**12 - 1, 2**12) * 6))
"""Keys, and query tokens, of very rare batches."""
SURGES = sorted(
    (
        *(384, 385, 400, 450, 511, 512, 513, 600, 700, 850, 1_000),
        *(*around(2**10), 1_025, 1_030, 1_100, 1_200) * 4,
        *(1_300, 1_700, *around(2**11)),
    )
)
CHUNKS = (64, 65, 100, 127, 128, 129, 160, 191, 192, 193, 255, 256, 257, 300)
COMMON = 60
"""How much more the weight of a usual kind counts than that of a rare one. A very rare kind has the weight 1: such a
case may take as long as 50 others."""
RARE: Final[dict[Kind, int]] = {
    "many": 17,
    "horde": 6,
    "chunk": 12,
    "surge": 30,
    "vast": 11,
    "convoy": 4,
    "shelf": 10,
}
"""The weights of rare kinds."""
SURGE_WEIGHTS = (
    (SURGE_TOKENS, SURGE_PRODUCTS, RARE["surge"]),
    (SURGE_TOKENS, COSTLY_PRODUCTS, 3),
    (385, SURGE_PRODUCTS, 14),
)
"""Tokens, products and weight: few cases can afford more than a thousand tokens, several a few hundred."""
MASKED = 2
"""How much more the weight of chunks counts with a bias, bits, or keys behind a row's own, which few keys have."""
_SHELVES = sorted((*around(*(2**place for place in range(11, 18))), *(5 * 2**place for place in range(9, 15))))
SHELVES = sorted(length for length in _SHELVES for _ in range(length >> 12 or 1))
"""Keys before the first token of a batch; the longest are repeated, because few cases can afford them."""


class _Step(Enum):
    """What comes next in a batch."""

    STOP = 0
    SEQUENCE = 1
    EMPTY = 2


_OPENING = (_Step.SEQUENCE,) * 56 + (_Step.EMPTY,) * 7 + (_Step.STOP,)
_NEXT = (_Step.STOP,) * 9 + (_Step.SEQUENCE,) * 15 + (_Step.EMPTY,) * 2
_NEXT_IN_CROWD = (_Step.STOP,) + (_Step.SEQUENCE,) * 26 + (_Step.EMPTY,) * 3
_NEXT_IN_MANY = (_Step.STOP,) + (_Step.SEQUENCE,) * 880 + (_Step.EMPTY,) * 120
_NEXT_OF: Final[dict[Kind, tuple[_Step, ...]]] = {
    "crowd": _NEXT_IN_CROWD,
    "convoy": _NEXT_IN_CROWD,
    "many": _NEXT_IN_MANY,
    "horde": _NEXT_IN_MANY,
}
_BOOLEANS = sampled_from((False, True))
_FEWER = sampled_from((0,) * 12 + (1, 2, 3, 4, 5, 6))
"""How the sequences are chosen that get fewer keys than query tokens; 0 chooses none."""
_SERVED = sampled_from((False, True))
_DECODED = sampled_from((False, True, True, True))
"""Whether a key of a served model gets a batch that schedulers make; for decodes, fewer keys can afford one."""
_PLACES = sampled_from(range(12))
_STRADDLES = (2, 3, 5)
"""A context ends so many keys before an edge, so that the query tokens after it lie on both sides of the edge."""

_QUERIES_OF_CROWD = (1, 1, 1, 1, 1, 1, 2, 3)


def batches(
    *,
    key: CompileKey = CompileKey(),  # noqa: B008 (frozen)
    num_kv_heads: int = 1,
    domain: Domain = Domain(),  # noqa: B008 (frozen)
    campaign: bool = False,
) -> st.SearchStrategy[tuple[Sequence, ...]]:
    """Return a strategy of batches; shrinks towards one sequence of one token without a context.

    Batches are prefill, decode, chunked prefill with a context, or all mixed, with empty sequences anywhere where the
    domain allows them. Some have no sequence, many tiny ones, or a long one. Paged decode that skips no sequence gets
    one query token each, and its empty sequences are decodes of length 0. All lengths up to 17 are likely; longer ones
    lie around multiples of the page, the tiles, the q-block and the segments.
    :mod:`fuzz_attn.strategies.budgets` bounds what a batch costs. In a ``campaign``, which shrinks cases as
    data, half of the batches of the keys of served models are as schedulers make them
    (:mod:`fuzz_attn.strategies.serving`), and a few have up to 1,100 sequences: Hypothesis would give up on them.
    """
    if num_kv_heads < 1:
        raise InvalidArgument(f"{num_kv_heads=} must be at least 1")
    return _batches(key, num_kv_heads, domain, campaign)


@composite
def _batches(
    draw: st.DrawFn, key: CompileKey, num_kv_heads: int, domain: Domain, campaign: bool
) -> tuple[Sequence, ...]:
    single = FAMILIES[key.family].one_token_each and not key.has("filter_by_query_len")
    if campaign and may_serve(key, num_kv_heads) and draw(_DECODED if single else _SERVED):
        return draw(serving_batches(key=key, num_kv_heads=num_kv_heads))
    surge = next((weight for *most, weight in SURGE_WEIGHTS if affords_surge(key, num_kv_heads, *most)), 0)
    bias, window, segments = key.has("qq_bias"), key.has("window"), key.launch.num_segments * (key.launch.path == "3d")
    empty = domain.allows("empty_decodes" if single else "empty_sequences")
    masked = bias or key.mask in ("custom", "custom_alone", "lookahead")
    rarely, usual, rare = _kinds(bias, masked, window, segments, single, empty, surge, campaign)
    kind = draw(rare if draw(rarely) else usual)
    merges = key.launch.path == "3d" or (key.launch.path == "auto" and kind in ("decode", "long", "vast", "convoy"))
    size = _SIZES.get(kind, _Size())
    budget = budget_for(key, num_kv_heads=num_kv_heads, merges=merges, **size._asdict())
    queries, contexts = _lengths(key, single, domain.tile_sizes, "vast" if kind == "convoy" else kind)
    total = draw(_BOOLEANS)
    steps = _steps(kind, empty)
    sequences: list[Sequence] = []
    step = draw(_opening(empty))
    step = _Step.EMPTY if kind == "shelf" else step
    most = draw(_MANY) if kind == "many" and campaign else _MOST.get(kind, MAX_SEQUENCES)
    while step != _Step.STOP:
        sequence = _sequence(draw, budget, queries, contexts, step == _Step.EMPTY, total)
        if single and step == _Step.EMPTY:
            sequence = Sequence(1, -1)
        sequences.append(sequence)
        budget.spend(sequence)
        # Drawn even if nothing can follow: shrinking a key raises the budget and must not need more choices.
        step = draw(steps)
        step = _Step.SEQUENCE if kind == "shelf" and len(sequences) == 1 else step
        if budget.spent or len(sequences) == most:
            break
        if kind in ("convoy", "shelf"):
            queries, contexts = _lengths(key, single, domain.tile_sizes, "crowd")
    if kind == "convoy":
        place = draw(_PLACES) % max(1, len(sequences))
        sequences = [*sequences[1 : place + 1], *sequences[:1], *sequences[place + 1 :]]
    return _with_fewer_keys(sequences, draw(_FEWER)) if domain.allows("fewer_keys") else tuple(sequences)


def _with_fewer_keys(sequences: list[Sequence], choice: int) -> tuple[Sequence, ...]:
    """Return the sequences, some with fewer keys than query tokens: none, one, half as many or one less."""
    changed = []
    for place, sequence in enumerate(sequences, 1):
        query_len, kind = sequence.query_len, choice * place % 7
        keys = {1: query_len // 2, 2: query_len - 1, 3: 1, 4: 0}.get(kind, sequence.seq_len)
        changed.append(Sequence(query_len, keys - query_len) if 0 <= keys < query_len else sequence)
    return tuple(changed)


def _sequence(
    draw: st.DrawFn, budget: Budget, queries: tuple[int, ...], contexts: tuple[int, ...], empty: bool, total: bool
) -> Sequence:
    """Draw a sequence within the budget; with ``total`` the second length is drawn for the whole sequence."""
    query_len = _length(draw, queries, budget.most_queries())
    if empty:
        query_len = 0
    most = budget.most_keys(query_len)
    context_len = _length(draw, contexts, most if total else most - query_len)
    if total:
        context_len -= query_len
    return Sequence(query_len=query_len, context_len=max(0, context_len))


def _length(draw: st.DrawFn, table: tuple[int, ...], most: int) -> int:
    affordable = max(1, bisect_right(table, most))
    # Hypothesis makes no choice in a range of one. As above, the number of choices must not depend on the budget.
    return table[min(draw(indices(max(2, affordable))), affordable - 1)]


@lru_cache(maxsize=64)
def _kinds(
    qq_bias: bool,
    masked: bool,
    window: bool,
    segments: int,
    single: bool,
    empty: bool,
    surge: int,
    campaign: bool,
) -> tuple[st.SearchStrategy[bool], st.SearchStrategy[Kind], st.SearchStrategy[Kind]]:
    """Return strategies of whether a kind is a rare one, of the usual kinds and of the rare ones.

    One table of all kinds would have a thousand entries. Hypothesis shrinks an index by 1 at a time where a later
    choice can take what it loses, and gives up after 500 steps.
    """
    weights: dict[Kind, int] = {"prefill": 5, "decode": 7, "mixed": 9, "crowd": 2, "long": 1}
    weights["prompt"] = 1
    if segments:
        weights |= {"decode": 7, "mixed": 16, "long": 2, "prompt": 2}
    if segments > MANY_SEGMENTS:
        weights["long"] = 6
    if window:  # its edge differs from row to row
        weights |= {"decode": 5, "prefill": 5, "mixed": 14}
    if qq_bias:
        weights |= {"decode": 2, "prefill": 7, "mixed": 12, "prompt": 4}
    extreme: tuple[Kind, ...] = ("endless", "flood")
    if qq_bias:  # a matrix of thousands of rows would be larger than the caches
        extreme = ("endless", "endless")
    if single:
        weights |= {"prefill": 0, "mixed": 0, "prompt": 0}
        extreme = ("endless",)
    several: tuple[Kind, ...] = ("horde", "chunk", "surge", "shelf")
    left_out = {*several} if single else {"surge"} if qq_bias or not surge else set()
    left_out |= set() if campaign else {"horde"}
    left_out |= set() if empty else {"shelf"}
    # Of decodes there are fewer usual kinds. Windows must hide something of long sequences.
    amounts = {kind: weight // 2 if single else weight for kind, weight in RARE.items() if kind not in left_out}
    amounts |= {"surge": surge} if "surge" in amounts else {}
    amounts |= {"chunk": MASKED * RARE["chunk"]} if "chunk" in amounts and masked else {}
    amounts["vast"] = RARE["vast"] * (2 if window else 1) // (2 if single and not window else 1)
    amounts["vast"] *= MANY_MERGED if segments > MANY_SEGMENTS else 1
    rare = [kind for kind, amount in amounts.items() for _ in range(amount)]
    rare += extreme
    usual = [kind for kind, weight in weights.items() for _ in range(weight)]
    rarely = (*(False,) * round(COMMON * len(usual) / len(rare)), True)
    return sampled_from(rarely), sampled_from(usual), sampled_from(rare)


@lru_cache(maxsize=4)
def _opening(empty: bool) -> st.SearchStrategy[_Step]:
    return sampled_from(_OPENING if empty else (_Step.SEQUENCE,))


@lru_cache(maxsize=16)
def _steps(kind: Kind, empty: bool) -> st.SearchStrategy[_Step]:
    table = _NEXT_OF.get(kind, _NEXT)
    return sampled_from(table if empty else [step for step in table if step != _Step.EMPTY])


@lru_cache(maxsize=4096)
def _lengths(
    key: CompileKey, single: bool, tile_sizes: tuple[int, ...], kind: Kind
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tables of query lengths and of context lengths (or total lengths) of a kind of batch."""
    tiles = (key.launch.tile_size,) if key.launch.tile_size else tile_sizes
    edges = multiples(key.block_size, *tiles, times=(1, 2, 3, 4))
    if kind in _NEXT_OF:
        tiny = {"horde": (1, *range(4, DENSE))}.get(kind, _QUERIES_OF_CROWD)
        return ((1,) if single else tiny), (*range(4), *sorted(around(key.block_size)))
    if kind == "prefill":
        return _queries(key, edges), (0,)
    if kind in ("prompt", "chunk", "surge", "flood"):
        several = [length for length in _queries(key, edges) if length > DENSE]
        before = sorted((0, 0, 0, 1, *tiles, *(DEEP * (kind == "chunk"))))
        return (1, *{"prompt": several, "chunk": CHUNKS, "surge": SURGES, "flood": FLOODS}[kind]), tuple(before)
    if kind == "decode":
        return (1,), _contexts(key, edges, tiles)
    if kind in ("long", "vast", "endless", "shelf"):
        pages = around(*(number * key.block_size for number in PAGES_OF_VAST))
        vast = [*VAST_KEYS, *(length for length in pages if VAST_KEYS[0] <= length <= VAST_KEYS[-1])]
        others = {"vast": vast, "endless": ENDLESS_KEYS, "shelf": SHELVES}
        return ((1,) if single else (1, 2, 3)), (0, *sorted(others.get(kind) or _long(key, edges, tiles)))
    straddled = {edge - step for edge in edges for step in _STRADDLES}
    return _queries(key, edges), _contexts(key, edges | straddled, tiles)


def _long(key: CompileKey, edges: set[int], tiles: tuple[int, ...]) -> list[int]:
    """Return lengths of several hundred keys; those with many pages or, in many segments, many tiles are repeated."""
    segments = key.launch.num_segments * (key.launch.num_segments > MANY_SEGMENTS)
    counted = multiples(*(segments * tile for tile in tiles), times=(1, 2))
    counted |= around(*(pages * key.block_size for pages in PAGES_OF_LONG))
    return [*edges | set(LONG_KEYS), *[length for length in counted if DENSE < length <= MOST_OF_LONG] * 6]


def _queries(key: CompileKey, edges: set[int]) -> tuple[int, ...]:
    blocks = multiples(smallest_block_q(key.num_queries_per_kv), max(1, 64 // key.num_queries_per_kv), times=(1, 2, 3))
    return ladder(edges | blocks, first=1, last=MAX_TOKENS, repeat=1)


def _contexts(key: CompileKey, edges: set[int], tiles: tuple[int, ...]) -> tuple[int, ...]:
    segments = multiples(*(key.launch.num_segments * tile for tile in tiles), times=(1, 2))
    longest = max(TYPICAL_KEYS, key.block_size + 1)
    return ladder(edges | segments | set(range(20, TYPICAL_KEYS, 11)), first=0, last=longest, repeat=4)
