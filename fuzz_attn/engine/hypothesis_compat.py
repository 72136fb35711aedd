"""What this project uses of Hypothesis beyond its documented interface. Seen to work with 6.165.4 and 6.170.15.

- ``choices_to_bytes`` encodes the choices of a draw as an example database holds them.
- A database keeps failures that are not yet shrunk under the test's key with the suffix ``.secondary``; Hypothesis
  takes a failure under the key itself for shrunk.
- ``derandomize`` rules out a database only where both are arguments of the same ``settings``; a parent's
  ``derandomize`` leaves it. Shrinking is then the same in every run.

``tests/engine/test_hypothesis_compat.py`` fails where one of these changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from hypothesis import Phase, Verbosity, settings
from hypothesis.database import ExampleDatabase, choices_to_bytes

DATABASE_KEY: Final = b"failure"
_UNSHRUNK_KEY: Final = DATABASE_KEY + b".secondary"


class _OneFailure(ExampleDatabase):
    """A database that holds one failure and stores nothing: a campaign saves its own counterexamples."""

    def __init__(self, choices: Sequence[int]) -> None:
        super().__init__()
        self._failure = choices_to_bytes(choices)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return (self._failure,) if key == _UNSHRUNK_KEY else ()

    def save(self, key: bytes, value: bytes) -> None:
        """Store nothing."""

    def delete(self, key: bytes, value: bytes) -> None:
        """Store nothing."""


def shrink_only(choices: Sequence[int]) -> settings:
    """Return settings with which ``hypothesis.find`` starts from these choices and only shrinks."""
    same_each_time = settings(derandomize=True)
    return settings(
        same_each_time,
        database=_OneFailure(choices),
        deadline=None,
        phases=(Phase.reuse, Phase.shrink),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
