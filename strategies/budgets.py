"""Budgets: what a case may cost, so that the median case stays small in Triton's interpreter."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import isqrt

from fuzz_attn.case.attention_case import MAX_TOTAL_ELEMENTS, CompileKey
from fuzz_attn.case.parts import Sequence

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
