"""Foreign files: reads files that somebody else may have written, and replaces files where others may write.

The folder of this user's caches, of generated programs and of files of published packages, is one where none may.

It also lists the targets that installed packages name in their files.

A device, a pipe or a huge file is refused before it is read, and a file is replaced by a new one, so that a link in its
place leads nowhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

from fuzz_attn.errors import TargetError

LARGEST_BYTES: Final = 256 * 2**20
"""No file that is read whole is larger."""
ENTRY_POINT_GROUP: Final = "fuzz_attn.targets"


def opened(path: Path) -> IO[bytes]:
    """Return an open file; raises OSError for what is no file, such as a pipe, which would be waited for."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a null character in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no file", str(path))
    return os.fdopen(handle, "rb")


def content_of(path: Path, most_bytes: int = LARGEST_BYTES) -> bytes:
    """Return the bytes of a file; raises OSError for what is no file and for a file of more than ``most_bytes``."""
    with opened(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"has more than {most_bytes} bytes", str(path))
    return content


def write_new(path: Path, content: bytes) -> None:
    """Write a file, all of it or nothing; it replaces a file or a link of the name, and follows none."""
    temporary = path.with_name(f".{uuid4().hex}.part")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def target_points() -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages that are targets.

    To read the files of all packages takes 20 milliseconds, and a page of a hundred failures asks for each: they are
    read again where the import path, or a folder of it, has changed.
    """
    return _points_of(tuple((folder, _changed(folder)) for folder in dict.fromkeys(sys.path)))


@lru_cache(maxsize=4)
def _points_of(_: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _changed(folder: str) -> int:
    """Return when a folder of the import path was changed; 0 where there is none."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def obstacle_to(folder: Path) -> str:
    """Make a folder whose code may be executed, because only this user can write to it; return why it cannot, if so."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.stat()
    except OSError as error:
        return f"{folder} cannot be made: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is no folder"
    if status.st_uid != os.geteuid():
        return f"{folder} belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to {folder}"
    return ""


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
