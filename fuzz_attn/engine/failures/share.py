"""Share: what the shrinking of one failure may take of a campaign."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Self

from fuzz_attn.errors import ShareSpentInterrupt

PART: Final = 0.08
"""The part of a campaign's time that the shrinking of one failure may take."""
PART_OF_A_HANG: Final = 0.25
"""That part for a hang, each step of which takes seconds."""
CHECK_OF_A_HANG: Final = 1.5
"""The time left to check a shrunk hang, in limits of a launch: it waits for one, in a new process."""
LEAST_SECONDS: Final = 3.0
MOST_LAUNCHES: Final = 1000


@dataclass
class Share:
    """What the shrinking of one failure may still take; raises :class:`ShareSpentInterrupt` when it is used up."""

    until: float
    launches: int = MOST_LAUNCHES

    @classmethod
    def of_time(cls, max_time: float, *, hang: bool) -> Self:
        """Return the share of a failure in a campaign of so many seconds."""
        return cls(time.monotonic() + max(LEAST_SECONDS, (PART_OF_A_HANG if hang else PART) * max_time))

    def leave(self, seconds_left: float, launch_seconds: float) -> None:
        """Leave time for the check of a hang before the campaign ends, which is in so many seconds."""
        self.until = min(self.until, time.monotonic() + seconds_left - CHECK_OF_A_HANG * launch_seconds)

    def spend(self) -> None:
        """Count one launch."""
        self.launches -= 1
        if self.launches < 0 or time.monotonic() > self.until:
            raise ShareSpentInterrupt
