"""Seeded numbers that are the same bit for bit on every machine and library version.

They use only the raw output of the Philox counter-based generator, which NumPy guarantees (it does not guarantee its
distributions), integer arithmetic, and single IEEE operations.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

_NORMAL_MEAN = 2.0 * 65535.0
_NORMAL_DEVIATION = 37837.227  # of the sum of four independent uniforms on 0..65535: sqrt(4 * (65536**2 - 1) / 12)
_EVEN_QUARTERS = np.uint64(0x0000FFFF0000FFFF)

_PHILOX: Final = np.random.Philox(key=0)
"""One generator, moved to the position of a stream for each call: making a new one takes longer than most streams."""
_BLOCK: Final = 4
"""Words that Philox makes from one value of its counter."""
_EMPTY: Final = np.zeros(_BLOCK, np.uint64)


class Stream:
    """Numbers of one purpose: the same ``(seed, purpose)`` gives the same numbers, any other gives unrelated ones."""

    def __init__(self, seed: int, purpose: int) -> None:
        self._key = np.array([seed, purpose], np.uint64)
        self._drawn = 0

    def raw(self, count: int) -> npt.NDArray[np.uint64]:
        """Return ``count`` raw words of 64 bits."""
        block, skipped = divmod(self._drawn, _BLOCK)
        self._drawn += count
        _PHILOX.state = {
            "bit_generator": "Philox",
            "state": {"counter": np.array([block, 0, 0, 0], np.uint64), "key": self._key},
            "buffer": _EMPTY,
            "buffer_pos": _BLOCK,
            "has_uint32": 0,
            "uinteger": 0,
        }
        words: npt.NDArray[np.uint64] = _PHILOX.random_raw(skipped + count)
        return words[skipped:]

    def normals(self, *shape: int) -> Floats:
        """Return values of mean 0 and variance 1, nearly normal (four uniforms added), within 3.47 of 0."""
        words = self.raw(math.prod(shape))
        pairs = words >> np.uint64(16)
        pairs &= _EVEN_QUARTERS
        pairs += words & _EVEN_QUARTERS
        halves = pairs.view(np.int32)
        sums = (halves[0::2] + halves[1::2]).astype(np.float32)
        sums -= np.float32(_NORMAL_MEAN)
        sums *= np.float32(1.0 / _NORMAL_DEVIATION)
        normals: Floats = sums.reshape(shape)
        return normals

    def signs(self, *shape: int) -> Floats:
        """Return values of -1 and 1."""
        return (self.below(2, *shape) * 2 - 1).astype(np.float32)

    def below(self, bound: int | Integers, *shape: int) -> Integers:
        """Return integers in ``[0, bound)``; ``bound`` may be an array that broadcasts against ``shape``."""
        words = self.raw(math.prod(shape))
        words >>= np.uint64(33)
        high: Integers = words.view(np.int64).reshape(shape)
        if isinstance(bound, int) and bound > 0 and not bound & (bound - 1):
            high &= bound - 1  # equal to the remainder for a power of two, and several times as fast
            return high
        return high % bound

    def permutation(self, count: int) -> Integers:
        """Return the numbers 0 to ``count - 1`` in a seeded order."""
        return np.argsort(self.raw(count), kind="stable").astype(np.int64, copy=False)
