"""The time limit of a run, of which starting takes a part."""

from __future__ import annotations

from typing import Final

START_PART: Final = 0.25
"""So much of the time limit starting may take: torch, the target and a device. On a slow machine it takes longer."""


def time_to_fuzz(max_time: float, starting: float) -> float:
    """Return how many seconds of a limit are left where starting took some; beyond a quarter they do not count."""
    return max_time - min(max(0.0, starting), START_PART * max_time)
