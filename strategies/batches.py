"""Batches: the sequences of a case, within its budget. Lengths are mostly small, or near multiples of pages."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import isqrt
from typing import Final, Literal, NamedTuple, TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.attention_case import MAX_TOTAL_ELEMENTS, CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import Sequence
from fuzz_attn.strategies.draws import DENSE, around, composite, indices, ladder, multiples, sampled_from
from fuzz_attn.strategies.serving import may_serve, serving_batches

PROGRAM_MS = 9
TILE_MS = 5
SEGMENT_MS = 1
MERGE_MS = 2
"""About what a program and a tile take in the interpreter of Triton 3.9. A segment and the merging of one row take 4
and 7 there, but hardly anything in the simulator. With those costs few 3D cases would have several query tokens."""

MAX_MS = 420
MAX_TIMES = 4
"""How many times as much a rare case may take."""

RARE_TIMES, CHUNK_TIMES = 12, 30
"""The same for very rare cases, and for chunks of hundreds of tokens on a long context."""

MOST_TIMES = 2000
"""The same for extreme cases. They take up to a second in the simulator, where a tile of many programs costs less."""

MAX_SHARE = 0.6
"""The share of the remaining budget that one sequence may take, so that others can follow it."""

MAX_TOKENS = 72
RARE_TOKENS = 320
CROWD_TOKENS = 1_400
"""The most tokens of hundreds of sequences, each of a few keys."""
MOST_TOKENS = 4096
MAX_QUERY_ELEMENTS = 2**17
LONG_CACHE_ELEMENTS = 3 * 2**18
"""Elements of K of one in a hundred cases: 32,768 keys of one small head, or 6,144 of a large one."""
SHELF_ELEMENTS = 2**22
"""The same where no token sees the keys: 32,768 of a large head."""
SURGE_TOKENS, SURGE_PRODUCTS = 1025, 2**27
"""Products of a prompt of 1,024 tokens and more; only cases of few small heads can afford it."""
COSTLY_PRODUCTS = 2**29
"""The same of a very rare case."""
CROWD_ELEMENTS = 2**18
"""Elements of q of hundreds of sequences."""
MOST_QUERY_ELEMENTS = 2**19
MAX_CACHE_ELEMENTS = 2**18
MOST_CACHE_ELEMENTS = 2**22
SCORE = 48
"""Products that cost as much as a score."""
GROUP_OF_USUAL_COST = 4
"""In larger groups, the scores cost more than the caches."""
MOST_ROW_SCORES = 2**20
MOST_SCORES = 2**24
"""Extreme cases may have caches so large, so many scores of one query token in all heads, and so many in all. The
oracle's float64 copies of them then take half a gigabyte."""

MOST_PRODUCTS = 2**30

MOST_TILES = 2**11
"""The most tiles of an extreme case, whose loop takes half a second in the simulator: 131,072 keys in tiles of 64."""

MOST_PADDED_TOKENS = 3
"""Rows of q that belong to no sequence; each has partial outputs of all segments too."""

TYPICAL_TILE = 32
MIN_TILES = 4
"""Fewer tiles would leave nothing to merge."""


@dataclass
class Budget:
    """What the remaining sequences may use: milliseconds, query tokens, pages.

    One sequence may take ``share`` of the remaining milliseconds. ``per_block`` and ``per_tile`` are the costs of a
    q-block and of one of its tiles in all KV heads, ``per_token`` the cost of merging the segments of a token. A first
    sequence of one token is always affordable.
    """

    ms: float
    share: float
    tokens: int
    pages: int
    per_block: int
    per_tile: int
    per_token: int
    block_q: int
    tile: int
    block_size: int

    @property
    def spent(self) -> bool:
        """Whether not even a sequence of one token is affordable any more."""
        return self.ms < self._cost(1, 1) or self.tokens < 1 or self.pages < 1

    def most_queries(self) -> int:
        """Return the longest query that is affordable without a context, at least 1."""
        most = min(self.tokens, self.pages * self.block_size)
        return max(1, bisect_right(range(1, most + 1), self.ms * self.share, key=self._least))

    def most_keys(self, query_len: int) -> int:
        """Return the longest sequence that is affordable with such a query; a short query always gets a few tiles."""
        left = self.ms * self.share - self._cost(query_len, 0)
        fewest = MIN_TILES if query_len <= self.block_q else 1
        tiles = max(fewest, int(left / (self.per_tile * self._blocks(query_len))))
        return min(tiles * self.tile, self.pages * self.block_size)

    def spend(self, sequence: Sequence) -> None:
        """Subtract the cost of a sequence."""
        self.ms -= self._cost(sequence.query_len, self._tiles(sequence.seq_len)) if sequence.query_len else 0
        self.tokens -= sequence.query_len
        self.pages -= -(-sequence.seq_len // self.block_size)

    def _least(self, query_len: int) -> int:
        """Return what a query without a context costs."""
        return self._cost(query_len, self._tiles(query_len))

    def _tiles(self, seq_len: int) -> int:
        return -(-seq_len // self.tile)

    def _blocks(self, query_len: int) -> int:
        return max(1, -(-query_len // self.block_q))

    def _cost(self, query_len: int, tiles: int) -> int:
        return self._blocks(query_len) * (self.per_block + tiles * self.per_tile) + query_len * self.per_token


def smallest_block_q(num_queries_per_kv: int) -> int:
    """Return the fewest query tokens of a program of the unified family: 16 rows, or one token's group."""
    rows = 1 << (num_queries_per_kv - 1).bit_length()
    return max(16, rows) // num_queries_per_kv


def affords_surge(key: CompileKey, num_kv_heads: int, tokens: int, products: int) -> bool:
    """Return whether a prompt of so many tokens has at most so many products, and not too many elements of q."""
    num_heads = num_kv_heads * key.num_queries_per_kv
    few = tokens * num_heads * key.head_size <= MOST_QUERY_ELEMENTS
    return few and tokens**2 * num_heads * (key.head_size + SCORE) <= products


def budget_for(
    key: CompileKey,
    *,
    num_kv_heads: int,
    merges: bool,
    times: int = 1,
    tokens: int = MAX_TOKENS,
    cached: int = MOST_CACHE_ELEMENTS,
    products: int = MOST_PRODUCTS,
) -> Budget:
    """Return the budget of a case.

    ``merges`` counts the merging of segments. ``times`` multiplies the milliseconds; above 1 one sequence may take all,
    and with ``MOST_TIMES`` it may have more keys. ``tokens`` is the largest number of query tokens. An extreme case has
    at most ``cached`` elements of K. A prompt has at most ``products``: its scores of all heads, times the elements of
    a head and ``SCORE``; the segments' partial outputs have a thirty-second of that.
    """
    row, num_heads = num_kv_heads * key.widest, num_kv_heads * key.num_queries_per_kv
    segments = max(0, key.launch.num_segments - 1)
    extreme = times == MOST_TIMES
    cached //= max(1, key.num_queries_per_kv // GROUP_OF_USUAL_COST)
    most = min(cached, MOST_ROW_SCORES // num_heads * row) if extreme else MAX_CACHE_ELEMENTS
    elements = MOST_QUERY_ELEMENTS if extreme and products > SURGE_PRODUCTS else MAX_QUERY_ELEMENTS
    elements = CROWD_ELEMENTS if extreme and tokens == CROWD_TOKENS else elements
    queries = elements // (row * key.num_queries_per_kv)
    partial = num_heads * key.launch.num_segments << (key.widest - 1).bit_length()
    merged = min(MAX_TOTAL_ELEMENTS, products // 32) // partial - MOST_PADDED_TOKENS if partial else tokens
    tokens = min(
        tokens,
        queries,
        isqrt(MOST_SCORES // num_heads),
        isqrt(products // (num_heads * (key.head_size + SCORE))),
        merged,
    )
    tile = key.launch.tile_size or TYPICAL_TILE
    most = min(most, MOST_TILES * tile * row) if extreme else most
    return Budget(
        ms=MAX_MS * times,
        share=1.0 if times > 1 else MAX_SHARE,
        tokens=max(1, tokens),
        pages=max(2, most // (row * key.block_size)),
        per_block=num_kv_heads * (PROGRAM_MS + segments * SEGMENT_MS),
        per_tile=num_kv_heads * TILE_MS,
        per_token=num_kv_heads * key.num_queries_per_kv * MERGE_MS if merges else 0,
        block_q=smallest_block_q(key.num_queries_per_kv),
        tile=tile,
        block_size=key.block_size,
    )


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
    :mod:`fuzz_attn.strategies.batches` bounds what a batch costs. In a ``campaign``, which shrinks cases as
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
