"""Shrinking: Hypothesis repeats the choices of a failing draw, then tries simpler ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import find
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from fuzz_attn.engine.hypothesis_compat import DATABASE_KEY, shrink_only
from fuzz_attn.errors import FoundError

Ex = TypeVar("Ex")


def shrink(strategy: SearchStrategy[Ex], choices: Sequence[int], attempt: Callable[[Ex], None]) -> None:
    """Call ``attempt`` with the value that a strategy makes of the choices, then with simpler values.

    A value fails where ``attempt`` raises :class:`FoundError`. Returns when no simpler value fails, or at once if the
    first value does not fail again.
    """

    def fails(value: Ex) -> bool:
        try:
            attempt(value)
        except FoundError:
            return True
        return False

    with contextlib.suppress(NoSuchExample):
        find(strategy, fails, settings=shrink_only(choices), database_key=DATABASE_KEY)
