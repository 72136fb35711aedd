"""Shrinking: Hypothesis makes the choices of a failing draw again, and then ever simpler ones that still fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.database import ExampleDatabase, choices_to_bytes
from hypothesis.strategies import SearchStrategy

Ex = TypeVar("Ex")

_KEY: Final = b"failure"
_UNSHRUNK: Final = b"failure.secondary"
"""Where Hypothesis keeps what failed and is not shrunk to the end; it takes what lies under the key itself for done."""


class _OneFailure(ExampleDatabase):
    """What Hypothesis is told of an earlier run: it failed on these choices."""

    def __init__(self, choices: Sequence[int]) -> None:
        super().__init__()
        self._failure = choices_to_bytes(choices)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return (self._failure,) if key == _UNSHRUNK else ()

    def save(self, key: bytes, value: bytes) -> None:
        """Keep nothing: a campaign keeps its own failures."""

    def delete(self, key: bytes, value: bytes) -> None:
        """Keep nothing."""


def shrink(strategy: SearchStrategy[Ex], choices: Sequence[int], attempt: Callable[[Ex], None]) -> None:
    """Call ``attempt`` with the value that a strategy makes of the choices, then with simpler ones while they fail.

    Raises what it raises of the simplest value that fails; nothing if the first one does not fail again.
    """

    # In this order: a seed rules out a database, unless the settings come after it, and so would derandomize.
    @settings(
        database=_OneFailure(choices),
        derandomize=False,
        deadline=None,
        phases=(Phase.reuse, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
    )
    @seed(0)
    @given(drawn=strategy)
    def body(drawn: Ex) -> None:
        attempt(drawn)

    named: Any = body
    named._hypothesis_internal_database_key = _KEY  # as Hypothesis' own find() does
    body()
