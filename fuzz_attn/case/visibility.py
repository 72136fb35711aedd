"""Visibility: which keys of its sequence a query token sees. No other module knows how causality and a window cut.

Positions count the keys of a sequence from 0. Query ``i`` of a sequence stands at position ``context_len + i``: the
causal mask is aligned to the bottom right. Positions are integers, or arrays of numpy or torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

Positions = TypeVar("Positions", int, "npt.NDArray[np.int64]", "torch.Tensor")


class Visibility(NamedTuple):
    """Causality and a sliding window. ``window`` counts the keys that a token sees, its own among them; 0 is none."""

    window: int = 0

    def reach(self, position: Positions) -> Positions:
        """Return how many keys before its own a token sees."""
        if not self.window:
            return position
        limit = self.window - 1
        reach: Any = min(position, limit) if isinstance(position, int) else position.clip(max=limit)
        return reach  # type: ignore[no-any-return] # numpy's and torch's clip differ in their annotations

    def first(self, position: Positions) -> Positions:
        """Return the position of the first key that a token sees."""
        return position - self.reach(position)

    def keys_of(self, position: int) -> range:
        """Return the keys that a token sees."""
        return range(self.first(position), position + 1)

    def hides(self, position: Positions, key: Positions) -> Any:
        """Return whether a key lies before a token's window."""
        return key < self.first(position)

    def sees(self, position: int, key: int) -> bool:
        """Return whether a token sees a key."""
        return key in self.keys_of(position)

    def cuts(self, position: Positions) -> Any:
        """Return whether the window hides a key from a token."""
        return self.first(position) > 0

    def is_filled(self, position: int) -> bool:
        """Return whether a token sees as many keys as the window has."""
        return self.reach(position) == self.window - 1

    def most_keys(self, query_len: int, seq_len: int) -> int:
        """Return how many keys the new tokens of a sequence see together, or one more."""
        return min(seq_len, self.window + query_len) if self.window else seq_len
