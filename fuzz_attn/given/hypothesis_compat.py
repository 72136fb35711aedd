"""Hypothesis compat: what only private names of Hypothesis tell; tried with 6.165.4 and 6.170.17."""

from __future__ import annotations

from hypothesis import currently_in_test_context
from hypothesis.control import current_build_context


def is_final() -> bool:
    """Return whether the running example is shown to the user; true outside of tests with ``@given``.

    Hypothesis runs the simplest failing example once more to show it, and each ``@example`` only once. Its ``note``
    prints in these runs only.
    """
    return not currently_in_test_context() or current_build_context().is_final
