"""Visibility: which keys of its sequence a query token sees. No other module knows how masks and a window cut.

Positions count the keys of a sequence from 0. Query ``i`` of a sequence stands at position ``context_len + i``, unless
the causal mask is aligned to the top left. What a token sees is one range of keys; a custom mask hides further keys in
it (:mod:`fuzz_attn.inputs.batch_rows`). Positions are integers, or arrays of numpy or torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fuzz_attn.case.recipes import CAUSAL, Chunks, Custom, Full, Lookahead, Mask, TopLeft

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

Positions = TypeVar("Positions", int, "npt.NDArray[np.int64]", "torch.Tensor")


class Visibility(NamedTuple):
    """A mask and a sliding window. ``window`` counts the keys that a token sees up to its own; 0 is none."""

    window: int = 0
    mask: Mask = CAUSAL

    def position(self, row: Positions, context_len: Any) -> Positions:
        """Return the position at which a query token stands."""
        position: Positions = row if isinstance(self.mask, TopLeft) else row + context_len
        return position

    def reach(self, position: Positions) -> Positions:
        """Return how many keys before its own a token sees."""
        reach: Positions = position % self.mask.size if isinstance(self.mask, Chunks) else position
        return _at_most(reach, self.window - 1) if self.window else reach

    def first(self, position: Positions) -> Positions:
        """Return the position of the first key that a token sees."""
        return position - self.reach(position)

    def last(self, position: Positions, seq_len: Any) -> Positions:
        """Return the position of the last key that a token sees."""
        if self.sees_all_behind:
            last: Positions = position * 0 + (seq_len - 1)
            return last
        if isinstance(self.mask, TopLeft):  # a sequence may have fewer keys than query tokens
            return _at_most(position, seq_len - 1)
        return _at_most(position + self.mask.keys, seq_len - 1) if isinstance(self.mask, Lookahead) else position

    def rows_with_keys(self, query_len: int, context_len: int) -> range:
        """Return the query tokens of a sequence that see a key, custom masks and biases of minus infinity apart.

        With fewer keys than query tokens the first ones see none, or with a window from the top left the last ones.
        """
        seq_len = query_len + context_len
        if not seq_len:
            return range(0)
        if isinstance(self.mask, TopLeft):
            return range(min(query_len, seq_len + self.window - 1) if self.window else query_len)
        behind = self.mask.keys if isinstance(self.mask, Lookahead) else 0
        first = 0 if self.sees_all_behind else max(0, -context_len - behind)
        return range(min(first, query_len), query_len)

    @property
    def sees_all_behind(self) -> bool:
        """Whether a token sees every key behind its own."""
        return isinstance(self.mask, Full) or (isinstance(self.mask, Custom) and not self.mask.causal)

    def keys_of(self, position: int, seq_len: int) -> range:
        """Return the range of keys that a token sees."""
        return range(self.first(position), self.last(position, seq_len) + 1)

    def hides(self, position: Positions, key: Positions) -> Any:
        """Return whether a key lies before a token's window, or before its chunk."""
        return key < self.first(position)

    @property
    def may_cut(self) -> bool:
        """Whether a window or chunks may hide keys before a token's own."""
        return self.window > 0 or isinstance(self.mask, Chunks)

    def cuts(self, position: Positions) -> Any:
        """Return whether the window, or a chunk, hides a key before its own from a token."""
        return self.first(position) > 0

    def is_filled(self, position: int) -> bool:
        """Return whether a token sees as many keys as the window has."""
        return self.reach(position) == self.window - 1

    def most_keys(self, query_len: int, seq_len: int) -> int:
        """Return how many keys the new tokens of a sequence see together, or one more."""
        behind = self.mask.keys if isinstance(self.mask, Lookahead) else 0
        return min(seq_len, self.window + query_len + behind) if self.window and not self.sees_all_behind else seq_len


def _at_most(numbers: Positions, limit: Any) -> Positions:
    found: Any = min(numbers, limit) if isinstance(numbers, int) else numbers.clip(max=limit)
    return found  # type: ignore[no-any-return] # numpy's and torch's clip differ in their annotations
