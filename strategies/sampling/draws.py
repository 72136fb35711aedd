"""Draws: the two kinds of strategy that all others are made of, which can be sampled without Hypothesis.

Hypothesis takes some 40 microseconds for each choice, since it keeps what a shrinker may need. A campaign looks at
thousands of cases before one fails. So it samples them, by the very same functions, and keeps no more than the choices
of the case at hand: Hypothesis can make them again, and shrink what fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from random import Random
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from hypothesis import strategies as st

Ex = TypeVar("Ex")
P = ParamSpec("P")
T = TypeVar("T")

_SAMPLED: Final = "fuzz_attn_sampled"
"""The attribute of a strategy that holds how it is sampled: from a sample, its value."""


class Sample:
    """One value drawn without Hypothesis, and the ``choices`` that were made for it, in Hypothesis' own order."""

    def __init__(self, random: Random) -> None:
        self.choices: list[int] = []
        self._random = random.random  # the one method that gives the same numbers in every version of Python

    def draw(self, strategy: st.SearchStrategy[Ex], label: object = None) -> Ex:
        """Return a value of a strategy that this module made; raises TypeError for any other."""
        try:
            sampled: Callable[[Sample], Ex] = getattr(strategy, _SAMPLED)
        except AttributeError:
            raise TypeError(f"{strategy} cannot be sampled: it is made by no function of {__name__}") from None
        return sampled(self)

    def index(self, size: int) -> int:
        """Return the index of a table of a size, all alike; of one is no choice, as to Hypothesis."""
        if size == 1:
            return 0
        chosen = int(self._random() * size)
        self.choices.append(chosen)
        return chosen


def sampled_from(values: Sequence[T]) -> st.SearchStrategy[T]:
    """Return ``st.sampled_from(values)``: each value alike, shrinks towards the first."""
    table = values if isinstance(values, range) else tuple(values)
    size = len(table)
    strategy = cast(st.SearchStrategy[T], st.sampled_from(table))
    setattr(strategy, _SAMPLED, lambda sample: table[sample.index(size)])
    return strategy


def composite(function: Callable[Concatenate[st.DrawFn, P], T]) -> Callable[P, st.SearchStrategy[T]]:
    """Return ``st.composite(function)``, each of its draws under a label of its own.

    After each new example Hypothesis tries up to five that copy one draw over another with the same label, which by
    default all draws of equal strategies share. Here that is nearly all of them, and so five cases of six would be
    near copies of the one before, or the same case again.
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
