"""Draws: composite strategies whose draws Hypothesis' mutator leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Concatenate, ParamSpec, TypeVar, cast

from hypothesis import strategies as st

Ex = TypeVar("Ex")
P = ParamSpec("P")
T = TypeVar("T")


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

    return st.composite(distinct)
