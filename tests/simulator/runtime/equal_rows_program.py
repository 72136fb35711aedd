"""Check that equal rows of a dot product have equal bits, under the kernels of BLAS that OPENBLAS_CORETYPE names.

The rows stand anywhere in tiles of any height, in any memory order, of few or many programs. Some are 0, or have only
rows of 0 below them, which are multiplied once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzz_attn.simulator.runtime.tiles import dot

SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def transposed_in_memory(tiles: Any) -> Any:
    """Return the same tiles with the last two axes in the other order in memory."""
    return np.ascontiguousarray(tiles.swapaxes(1, 2)).swapaxes(1, 2)


def product_of(generator: np.random.Generator, row: Any, matrices: Any, height: int) -> Any:
    """Return what becomes of a row at some place in a tile of other rows."""
    programs = int(generator.choice([2, len(matrices)]))
    tiles = generator.standard_normal((programs, height, row.size)).astype(row.dtype)
    place = int(generator.integers(height))
    if generator.random() < 0.5:
        tiles[:, int(generator.integers(height)) :] = 0
    tiles[1, place] = row
    if generator.random() < 0.5:
        tiles = transposed_in_memory(tiles)
    return dot(tiles, matrices[:programs], None)[1, place]


def main(attempts: int = 100) -> None:
    """Compare what becomes of a row in tiles of several heights."""
    generator = np.random.default_rng(0)
    for attempt in range(attempts):
        depth, width = (int(size) for size in generator.choice(SIZES, 2))
        dtype = np.float64 if attempt % 4 == 0 else np.float32
        row = generator.standard_normal(depth).astype(dtype)
        matrices = generator.standard_normal((10, depth, width)).astype(dtype)
        if attempt % 5 == 0:
            row[:], matrices[1, 0] = 0, np.inf
        if attempt % 10 == 0:
            row[-1] = -0.0
        if attempt % 2:
            matrices = transposed_in_memory(matrices)
        heights = [int(height) for height in generator.choice(SIZES, 8)]
        products = {product_of(generator, row, matrices, height).tobytes() for height in heights}
        assert len(products) == 1, f"equal rows differ: {heights=} {depth=} {width=} {dtype.__name__}"


if __name__ == "__main__":
    main()
