"""Windows: how many keys a row sees, its own included."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.parts import Sequence
from fuzz_attn.strategies.sampling.draws import sampled_from
from fuzz_attn.strategies.sampling.lattices import around

HUGE = 2**20
TINY = (1, 2, 3)
LONG = 1024
"""In longer sequences, windows end beside powers of two from here on too."""


def windows(
    *,
    sequences: tuple[Sequence, ...] = (),
    block_size: int = 16,
    tile_sizes: tuple[int, ...] = (16, 32, 64),
) -> st.SearchStrategy[int]:
    """Return a strategy of windows of at least 1 key; shrinks towards 1, the row's own key.

    The windows end at and beside the edges of pages, tiles, contexts and whole sequences; one is too long to matter.
    Where a sequence has several query tokens, many windows hide a tile from a later token that an earlier token of the
    same block still sees, so that one row's softmax starts later than the others'.
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
    powers = around(*(1 << place for place in range(LONG.bit_length() - 1, longest.bit_length()) if longest > LONG))
    edges = {*TINY, *around(block_size, *tile_sizes), *own, *powers} - {0}
    inside = sorted(edge for edge in edges if edge < longest or not longest)
    long = [edge for edge in inside if edge >= LONG]
    inside += [*long, *(edge for edge in long if 2 * edge > longest)] * 6
    crossing = sorted({window for end in ends for tile in tile_sizes for window in _crossing(end, tile)})
    outside = (longest, longest + 1, HUGE) if longest else TINY
    repeated = crossing * (2 * len(inside) // max(1, len(crossing)) + 1)
    return sampled_from(sorted((*TINY, *inside, *inside, *repeated, *outside)))


def _crossing(sequence: Sequence, tile: int) -> Iterable[int]:
    """Yield windows that begin at a tile's edge for the last query token, and in the tile before for the one before."""
    if sequence.query_len > 1:
        yield from range(sequence.seq_len - sequence.seq_len // tile * tile or tile, sequence.seq_len, tile)
