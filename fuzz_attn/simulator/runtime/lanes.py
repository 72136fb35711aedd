"""Lanes: the programs that run a region together, and the rows of values that belong to them.

All arrays that depend on the program have one row for each lane of the region that runs. A region that only some
programs enter gets the rows of these programs, so nothing inside of it needs a mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fuzz_attn.errors import LoopLimitError

Array = npt.NDArray[Any]

# A kernel that runs a loop more often is considered to hang: a correct one walks a sequence tile by tile.
LOOP_LIMIT = 1 << 16


_NOTHING = np.array(0)

# Above this many elements a view is made instead of a copy; numpy takes microseconds to make one.
_SMALL = 4096


def rows(value: Any, count: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return `value` (an array or a number) for `count` lanes and the tile `shape`, as a new array."""
    result = np.empty((count, *shape), dtype)
    result[...] = value
    return result


def spread(value: Array, shape: tuple[int, ...]) -> Array:
    """Return `value` with its tile axes broadcast to `shape`."""
    full = (value.shape[0], *shape)
    if value.shape == full:
        return value
    if value.size <= _SMALL:
        result = np.empty(full, value.dtype)
        result[...] = value
        return result
    return np.broadcast_to(value, full)


def take(index: Array, *values: Array) -> tuple[Array, ...]:
    """Return the rows `index` (a mask or positions) of each value."""
    if index.dtype == np.bool_:
        index = index.nonzero()[0]
    return tuple([value.take(index, axis=0) for value in values])


def head(count: int, *values: Array) -> tuple[Array, ...]:
    """Return the first `count` rows of each value, as views."""
    return tuple([value[:count] for value in values])


def narrow(outer: Array, inner: Array, *values: Array) -> tuple[Array, ...]:
    """Return the rows that the lanes `inner` have in values of the lanes `outer`; both are sorted, `inner` a subset."""
    if outer.size == inner.size:
        return values
    index = outer.searchsorted(inner)
    return tuple([value.take(index, axis=0) for value in values])


def trip_counts(low: Array, high: Array, step: Array) -> Array:
    """Return how often each lane runs a `for` loop."""
    if step.size == 1 and step.item() == 1:
        trips: Array = np.maximum(np.subtract(high, low, dtype=np.int64), _NOTHING)
        return trips
    wide = high.astype(np.int64) - low
    stride = step.astype(np.int64)
    counts = np.where(stride > 0, -((-wide) // np.where(stride == 0, 1, stride)), 0)
    return np.maximum(counts, 0)


def extremes(counts: Array) -> tuple[int, int]:
    """Return the largest and the smallest trip count."""
    numbers = counts.tolist()
    return max(numbers), min(numbers)


def longest_first(counts: Array) -> tuple[Array, list[int]]:
    """Return the lanes' order by decreasing trip count, and for each iteration the number of lanes that run."""
    order = np.argsort(-counts, kind="stable")
    ended = np.bincount(counts)
    running = counts.size - np.cumsum(ended)
    return order, running.tolist()


def restore(order: Array, saved: list[tuple[Array, ...]], last: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the values of all lanes in their first order; the last group of `saved` left the loop first."""
    results = []
    for position, value in enumerate(last):
        pieces = [value, *(group[position] for group in reversed(saved))]
        joined = np.concatenate(pieces) if len(pieces) > 1 else value
        result = np.empty_like(joined)
        result[order] = joined
        results.append(result)
    return tuple(results)


def collect(saved: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Return the values of all lanes after a `while` loop; a group that left starts with its lanes' positions."""
    if len(saved) == 1:
        return saved[0][1:]
    count = sum([group[0].size for group in saved])
    results = []
    for column, first in enumerate(saved[0][1:], 1):
        result = np.empty((count, *first.shape[1:]), first.dtype)
        for group in saved:
            result[group[0]] = group[column]
        results.append(result)
    return tuple(results)


def blend(mask: Array, left: Array, right: Array) -> Array:
    """Return the rows of both branches of an `if`: `left` for the lanes where `mask` holds, `right` for the others."""
    result = np.empty((mask.size, *left.shape[1:]), left.dtype)
    result[mask] = left
    result[~mask] = right
    return result


Edge = tuple[Array, tuple[Any, ...]]


def branch(
    mask: Array, lanes: Array, left: tuple[Any, ...], right: tuple[Any, ...], to: list[Edge], other: list[Edge]
) -> None:
    """Send the lanes where `mask` holds along the edge `to`, with the arguments `left`, the rest along `other`."""
    taken = int(np.count_nonzero(mask))
    if mask.size != lanes.size:
        taken *= lanes.size
    if taken == lanes.size:
        to.append((lanes, left))
    elif not taken:
        other.append((lanes, right))
    else:
        for side, values, edges in ((mask, left, to), (~mask, right, other)):
            index = side.nonzero()[0]
            edges.append((lanes[index], take(index, *values)))


def join(edges: list[Edge]) -> tuple[Array, tuple[Any, ...]]:
    """Return the lanes that enter a block, sorted, with their arguments."""
    if len(edges) == 1:
        return edges[0]
    lanes = np.concatenate([edge[0] for edge in edges])
    order = np.argsort(lanes)
    columns = zip(*(edge[1] for edge in edges), strict=True)
    return lanes[order], tuple(np.concatenate(column)[order] for column in columns)


def check_iterations(count: int) -> None:
    """Raise LoopLimitError if a loop has run, or is about to run, more often than the limit."""
    if count > LOOP_LIMIT:
        raise LoopLimitError(f"a loop runs {count=} times; the limit is {LOOP_LIMIT}")
