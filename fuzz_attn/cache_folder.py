"""The folder of this user's caches: generated programs, files of published packages."""

from __future__ import annotations

import os
from pathlib import Path

from fuzz_attn.errors import TargetError
from fuzz_attn.simulator.disk_cache import obstacle_to


def cache_folder() -> Path:
    """Return the cache folder: ``FUZZ_ATTN_CACHE``, or ``fuzz_attn`` in the user's cache folder."""
    own = os.environ.get("FUZZ_ATTN_CACHE")
    general = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(own) if own else general / "fuzz_attn"


def private_folder(name: str) -> Path:
    """Return a folder of the cache whose files this process may execute, because only its owner can write to it.

    Raises :class:`TargetError` where there is none.
    """
    folder = cache_folder() / name
    obstacle = obstacle_to(folder)
    if obstacle:
        raise TargetError(f"the cache cannot be used: {obstacle}; set FUZZ_ATTN_CACHE to another folder")
    return folder
