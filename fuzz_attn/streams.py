"""Seeded numbers that are the same bit for bit on every machine and library version.

Only the raw output of the Philox counter-based generator is used, which NumPy guarantees; its distributions are not
guaranteed. What happens to the raw bits here is integer arithmetic and single IEEE operations.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

_NORMAL_MEAN = 2.0 * 65535.0
_NORMAL_DEVIATION = 37837.227  # of the sum of four independent uniforms on 0..65535: sqrt(4 * (65536**2 - 1) / 12)


class Stream:
    """Numbers of one purpose: the same ``(seed, purpose)`` gives the same numbers, any other unrelated ones."""

    def __init__(self, seed: int, purpose: int) -> None:
        self._bits = np.random.Philox(key=(purpose << 64) | seed)

    def raw(self, count: int) -> npt.NDArray[np.uint64]:
        """Return ``count`` raw words of 64 bits."""
        words: npt.NDArray[np.uint64] = self._bits.random_raw(count)
        return words

    def normals(self, *shape: int) -> Floats:
        """Return values of mean 0 and variance 1, nearly normal (four uniforms added), within 3.47 of 0."""
        words = self.raw(int(np.prod(shape)))
        quarters = words.astype("<u8", copy=False).view("<u2").reshape(*shape, 4)
        sums = quarters.sum(axis=-1, dtype=np.int32).astype(np.float32)
        normals: Floats = (sums - np.float32(_NORMAL_MEAN)) * np.float32(1.0 / _NORMAL_DEVIATION)
        return normals

    def signs(self, *shape: int) -> Floats:
        """Return values of -1 and 1."""
        return (self.below(2, *shape) * 2 - 1).astype(np.float32)

    def below(self, bound: int | Integers, *shape: int) -> Integers:
        """Return integers in ``[0, bound)``; ``bound`` may be an array that broadcasts against ``shape``."""
        high = (self.raw(int(np.prod(shape))) >> np.uint64(33)).astype(np.int64).reshape(shape)
        return high % bound

    def permutation(self, count: int) -> Integers:
        """Return the numbers 0 to ``count - 1`` in a seeded order."""
        return np.argsort(self.raw(count), kind="stable").astype(np.int64)
