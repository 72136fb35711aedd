"""Seeds: where the random numbers of each round of each shard begin, from the seed of the run."""

from __future__ import annotations

import hashlib
from typing import Final

ALL_SHARDS: Final = -1
"""Stands for a shard in the seeds of what all shards share."""


def derived_seed(campaign: int, shard: int, number: int) -> int:
    """Return the seed of one round of one shard, unrelated to the seeds of all other rounds."""
    text = f"{campaign}/{shard}/{number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big")
