"""Selection between two values by a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# numpy's `where` branches on every element. From this size on, copying the long runs of a mask is faster.
_LARGE = 16384


def select(mask: Array, left: Any, right: Any, dtype: np.dtype[Any]) -> Array:
    """Return `left` where `mask` holds and `right` elsewhere, both arrays or numbers, as an array of `dtype`."""
    if mask.size >= _LARGE:
        result: Array = np.empty(np.broadcast(mask, left, right).shape, dtype)
        result[...] = right
        np.copyto(result, left, where=mask)
        return result
    result = np.where(mask, left, right)
    return result if result.dtype == dtype else result.astype(dtype)
