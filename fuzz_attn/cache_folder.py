"""The folder of this user's caches: generated programs, files of published packages."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fuzz_attn.errors import TargetError


def cache_folder() -> Path:
    """Return the cache folder: ``FUZZ_ATTN_CACHE``, or ``fuzz_attn`` in the user's cache folder."""
    own = os.environ.get("FUZZ_ATTN_CACHE")
    general = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(own) if own else general / "fuzz_attn"


def private_folder(name: str) -> Path:
    """Return a folder of the cache whose files this process may execute, because only its owner can write to it.

    Raises :class:`TargetError` for a folder that belongs to somebody else, or that others may write to.
    """
    folder = cache_folder() / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise TargetError(f"cache folder {folder} cannot be used: {error.strerror}; set FUZZ_ATTN_CACHE") from error
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise TargetError(f"cache folder {folder} is not used: other users may write to it; set FUZZ_ATTN_CACHE")
    return folder
