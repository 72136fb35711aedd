"""Draws: the two kinds of strategy that all others consist of, and the tables of sizes that they draw from.

The strategies can be sampled without Hypothesis, which takes about 40 microseconds for each choice, since it records
what a shrinker may need. A campaign shrinks failing cases as data and needs none of that, so it samples the same
functions directly. Tests use them with Hypothesis, which can repeat the choices of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, wraps
from itertools import count
from random import Random
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from hypothesis import strategies as st

from fuzz_attn.case.domain import sizes_of

Ex = TypeVar("Ex")
P = ParamSpec("P")
T = TypeVar("T")

_SAMPLED: Final = "fuzz_attn_sampled"
"""The attribute of a strategy that holds a function from a sample to a value."""


class Sample:
    """One value drawn without Hypothesis, and the ``choices`` made for it, in Hypothesis' order."""

    def __init__(self, random: Random) -> None:
        self.choices: list[int] = []
        self._random = random.random  # the only method with the same numbers in every version of Python

    def draw(self, strategy: st.SearchStrategy[Ex], label: object = None) -> Ex:
        """Return a value of a strategy of this module; raises TypeError for any other."""
        try:
            sampled: Callable[[Sample], Ex] = getattr(strategy, _SAMPLED)
        except AttributeError:
            raise TypeError(f"{strategy} cannot be sampled: no function of {__name__} made it") from None
        return sampled(self)

    def index(self, size: int) -> int:
        """Return an index into a table of a size, each as likely; a size of 1 makes no choice, as in Hypothesis."""
        if size == 1:
            return 0
        chosen = int(self._random() * size)
        self.choices.append(chosen)
        return chosen


def sampled_from(values: Sequence[T]) -> st.SearchStrategy[T]:
    """Return ``st.sampled_from(values)``: each value as likely; shrinks towards the first."""
    table = values if isinstance(values, range) else tuple(values)
    size = len(table)
    strategy = cast(st.SearchStrategy[T], st.sampled_from(table))
    setattr(strategy, _SAMPLED, lambda sample: table[sample.index(size)])
    return strategy


def composite(function: Callable[Concatenate[st.DrawFn, P], T]) -> Callable[P, st.SearchStrategy[T]]:
    """Return ``st.composite(function)`` with a different label for each of its draws; shrinks as its draws do.

    After each new example Hypothesis tries up to five that copy one draw over another with the same label. By default
    all draws of equal strategies share a label. Here nearly all draws would, so that five of six cases would be near
    copies of the one before, or the same case again.
    """
    first = int.from_bytes(f"{function.__module__}.{function.__qualname__}".encode()) << 16

    @wraps(function)
    def distinct(draw: st.DrawFn, /, *args: P.args, **kwargs: P.kwargs) -> T:
        labels = count(first)

        def draw_labelled(strategy: st.SearchStrategy[Ex], label: object = None) -> Ex:
            return draw(strategy, next(labels) if label is None else label)

        return function(cast(st.DrawFn, draw_labelled), *args, **kwargs)

    made = st.composite(distinct)

    @wraps(function)
    def strategies(*args: Any, **kwargs: Any) -> st.SearchStrategy[T]:
        strategy = made(*args, **kwargs)
        setattr(strategy, _SAMPLED, lambda sample: function(sample.draw, *args, **kwargs))
        return strategy

    return cast(Callable[P, st.SearchStrategy[T]], strategies)


@composite
def one_of_each(
    draw: st.DrawFn, some: st.SearchStrategy[bool], groups: tuple[st.SearchStrategy[T | None], ...]
) -> tuple[T, ...]:
    """Return a strategy of at most one value of each group, where ``some`` says so; shrinks towards none."""
    if not draw(some):
        return ()
    return tuple(value for group in groups if (value := draw(group)) is not None)


DENSE = 18
"""Every table holds each length below this once, so that small lengths have the same index under every compile key."""

EVEN = 256
"""Hypothesis draws integers from a range of this width evenly."""


def lattice(values: Iterable[int], *, bounds: tuple[int, ...], simplest: int) -> tuple[int, ...]:
    """Return the values within a domain's bounds and the bounds themselves: the simplest one, then ascending.

    ``bounds`` is as in :class:`fuzz_attn.case.domain.Domain`: two values are an inclusive range, any other number of
    values is a list. Where ``simplest`` lies outside, the smallest value comes first.
    """
    chosen = set(bounds)
    if len(bounds) == 2:
        chosen |= {value for value in values if bounds[0] <= value <= bounds[1]}
    ascending = sorted(chosen)
    if simplest in chosen:
        ascending.remove(simplest)
        ascending.insert(0, simplest)
    return tuple(ascending)


def around(*edges: int) -> set[int]:
    """Return each edge with its two neighbours, without negative ones."""
    return {edge + step for edge in edges for step in (-1, 0, 1) if edge + step >= 0}


def multiples(*units: int, times: Iterable[int]) -> set[int]:
    """Return the multiples of every unit, each with its two neighbours."""
    return {length for time in times for unit in units for length in around(time * unit)}


def ladder(edges: Iterable[int], *, first: int, last: int, repeat: int = 2) -> tuple[int, ...]:
    """Return ``first`` to ``DENSE - 1`` once each, then the edges up to ``last``, ``repeat`` times each, ascending."""
    above = sorted(edge for edge in set(edges) if DENSE <= edge <= last for _ in range(repeat))
    return (*range(first, min(DENSE, last + 1)), *above)


@lru_cache(maxsize=4096)
def indices(size: int) -> st.SearchStrategy[int]:
    """Return a strategy of the indices of a table; shrinks towards 0.

    Not ``integers``, which prefers the ends of a range longer than 127.
    """
    return sampled_from(range(size))


def draw_index(draw: st.DrawFn, size: int) -> int:
    """Draw an index into a table of any size, evenly; shrinks towards 0.

    It is drawn as two digits, because Hypothesis favours integers up to 256 within any wider range.
    """
    digits = -(-size // EVEN)
    width = -(-size // digits)
    return min(draw(indices(digits)) * width + draw(indices(width)), size - 1)


_STEPS: Final = 2**12
_EVENLY: Final = sampled_from((False, True, True))


def free_size(bounds: tuple[int, ...], step: int, sample: Sample) -> int:
    """Return a multiple of a step within the bounds of a domain; 0 where there is none.

    Two in three are as likely in each octave, the others anywhere.
    """
    sizes = sizes_of(bounds)
    if not isinstance(sizes, range):
        listed = [size for size in sizes if size % step == 0]
        return listed[sample.index(len(listed))] if listed else 0
    first, last = -(-sizes[0] // step), sizes[-1] // step
    if first > last:
        return 0
    place = sample.index(_STEPS) / _STEPS
    if sample.draw(_EVENLY):
        return min(last, int(first * ((last + 1) / first) ** place)) * step
    return (first + int((last + 1 - first) * place)) * step
