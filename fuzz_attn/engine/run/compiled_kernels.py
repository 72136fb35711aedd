"""Compiled kernels: Triton keeps them in the output folder, so that the next run there need not compile them again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from fuzz_attn.backends.gpus import may_use_gpu, visible_gpus

VARIABLE: Final = "TRITON_CACHE_DIR"
"""Where Triton keeps what it compiles, one folder for each kernel."""
NAME: Final = "triton"
MOST_BYTES: Final = 8 * 2**30
IN_USE_SECONDS: Final = 24 * 3600.0
"""A kernel that was used within this time is not deleted: another run may be about to load it."""


@contextmanager
def compiled_kernels_in(out: Path, backend: str, most_bytes: int = MOST_BYTES) -> Iterator[None]:
    """Let processes started meanwhile keep compiled kernels in ``out/triton``, of which at most ``most_bytes`` remain.

    The user's own ``TRITON_CACHE_DIR`` stays as it is; it is pruned only if it lies in ``out``. Nothing is done where
    nothing is compiled, which is without a GPU.
    """
    if not compiles(backend):
        yield
        return
    before = os.environ.get(VARIABLE)
    folder = Path(before or out / NAME).absolute()
    if folder.is_relative_to(out.absolute()):
        prune(folder, most_bytes)
    os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def compiles(backend: str) -> bool:
    """Return whether kernels are compiled for a backend on this machine, as far as that is known without torch."""
    return may_use_gpu(backend) and bool(visible_gpus(os.environ))


def prune(folder: Path, most_bytes: int) -> None:
    """Delete the kernels of a cache that were not used for longest, until the rest has at most ``most_bytes``."""
    with suppress(FileNotFoundError):
        kernels = sorted(((*_use_of(entry), entry) for entry in folder.iterdir() if entry.is_dir()), reverse=True)
        kept = 0
        for used, size, entry in kernels:
            kept += size
            if kept > most_bytes and used < time.time() - IN_USE_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)


def _use_of(kernel: Path) -> tuple[float, int]:
    """Return when a file of a kernel was last read or written, in seconds since 1970, and the bytes of all of them."""
    found = [path.stat() for path in kernel.iterdir()]
    return max((max(each.st_atime, each.st_mtime) for each in found), default=0.0), sum(each.st_size for each in found)
