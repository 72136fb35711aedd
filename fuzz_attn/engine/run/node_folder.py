"""The folder of a shard on a node of a Ray cluster. Those of actors that were killed are deleted by the next one there.

An actor holds a lock on a file beside its folder as long as it lives; the system takes it away with the process. So a
lock that is free says that the folder belongs to nobody, also where containers share the place of the folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PREFIX: Final = "fuzz-attn-ray-"
LOCK: Final = ".lock"
YOUNG_SECONDS: Final = 60.0
"""A lock file that is younger may belong to an actor that has not taken the lock yet."""


@contextmanager
def node_folder(place: Path | None = None) -> Iterator[Path]:
    """Make a folder for a ``with`` block, by default among temporary files, and delete abandoned ones."""
    place = Path(tempfile.gettempdir()) if place is None else place
    _delete_abandoned(place)
    handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=LOCK, dir=place)
    lock, folder = Path(name), Path(name.removesuffix(LOCK))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(handle)


def _delete_abandoned(place: Path) -> None:
    """Delete the folders whose locks nobody holds."""
    for lock in place.glob(f"{PREFIX}*{LOCK}"):
        with contextlib.suppress(OSError):  # of another user, or deleted by another actor meanwhile
            if time.time() - lock.stat().st_mtime > YOUNG_SECONDS:
                _delete_unless_held(lock)


def _delete_unless_held(lock: Path) -> None:
    """Delete a folder and its lock; raises OSError where an actor holds it."""
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.with_name(lock.name.removesuffix(LOCK)), ignore_errors=True)
        lock.unlink()
