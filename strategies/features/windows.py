"""Windows: how many keys a row may look back, its own included."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.attention_case import Sequence
from fuzz_attn.strategies.sampling.draws import sampled_from
from fuzz_attn.strategies.sampling.lattices import around

HUGE = 2**20
TINY = (1, 2, 3)


def windows(
    *,
    sequences: tuple[Sequence, ...] = (),
    block_size: int = 16,
    tile_sizes: tuple[int, ...] = (16, 32, 64),
) -> st.SearchStrategy[int]:
    """Return a strategy of windows of at least 1 key; shrinks towards 1, the row's own key.

    The windows lie on and beside the edges of pages, tiles, contexts and whole sequences; one too long to matter is
    among them. Where a sequence has several query tokens, many let a later one see nothing of a tile that an earlier
    one begins with: there a row's softmax has nothing yet, in the midst of a block that has.
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
    edges = {*TINY, *around(block_size, *tile_sizes), *own} - {0}
    inside = sorted(edge for edge in edges if edge < longest or not longest)
    crossing = sorted({window for end in ends for tile in tile_sizes for window in _crossing(end, tile)})
    outside = (longest, longest + 1, HUGE) if longest else TINY
    repeated = crossing * (2 * len(inside) // max(1, len(crossing)) + 1)
    return sampled_from(sorted((*TINY, *inside, *inside, *repeated, *outside)))


def _crossing(sequence: Sequence, tile: int) -> Iterable[int]:
    """Yield windows that begin with a tile for the last query token, and in the one before it for the token before."""
    if sequence.query_len > 1:
        yield from range(sequence.seq_len - sequence.seq_len // tile * tile or tile, sequence.seq_len, tile)
