"""The folder that a run writes to: ``reports/runs/<start>-<process>-<random>``. Old ones are deleted.

Several machines and containers may have one output directory. Their processes may have the same numbers, so the name
also has a random part, and what tells whether a run goes on is when its folder was last written to.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from fuzz_attn.backends.gpus import may_use_gpu, visible_gpus
from fuzz_attn.case.plain import shortened
from fuzz_attn.errors import OutputError
from fuzz_attn.foreign_files import content_of

KEPT_RUNS: Final = 20
"""So many of the newest run folders are kept in one output directory."""

IDLE_SECONDS: Final = 3600.0
"""A run whose folder was not written to for so long has ended: one that goes on marks its folder every minute."""

SUMMARY_NAME: Final = "summary.json"
EVENT_LOGS: Final = "events*.jsonl"
_NAME: Final = re.compile(r"\d{8}-\d{6}-(\d+)(-[0-9a-f]{8})?")
"""The names of older versions have no random part."""
_RANDOM_BYTES: Final = 4
POSSIBLE_HANG: Final = 1.0
"""A launch that has run for so many seconds when the time limit ends it may be a hang: its journal is kept."""
PAGE: Final = 4096
"""The system writes so many bytes at the start of a file at once, even if the process is killed meanwhile."""


def new_run_folder(out: str | Path | None) -> Path:
    """Return the folder of a run that starts now, below the output directory or, for None, below reports/."""
    started = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return runs_folder(out) / f"{started}-{os.getpid()}-{secrets.token_hex(_RANDOM_BYTES)}"


def runs_folder(out: str | Path | None) -> Path:
    """Return the folder of run folders, below the output directory or, for None, below reports/."""
    return Path(_local(out) or "reports").resolve() / "runs"


def output_folder(run_folder: Path) -> Path:
    """Return the output directory of a folder of :func:`new_run_folder`, or of a target's folder in it."""
    whole = run_folder.absolute()
    named = (folder for folder in (whole, *whole.parents) if _NAME.fullmatch(folder.name))
    return next((folder.parents[1] for folder in named), whole.parent)


class _Summary(msgspec.Struct):
    """What this module reads of ``summary.json``."""

    target: str
    compile_keys: dict[int, int]


def covered_keys(runs: Path, target: str) -> frozenset[int]:
    """Return the numbers of the compile keys that a target's runs in a folder of run folders have covered."""
    keys: set[int] = set()
    for path in runs.rglob(SUMMARY_NAME):
        # Of a run that is being written, of another version, or of somebody else.
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            summary = msgspec.json.decode(content_of(path), type=_Summary)
            keys.update(summary.compile_keys if summary.target == target else ())
    return frozenset(keys)


def counterexample_folder(out: str | Path | None) -> Path:
    """Return the folder of saved failures, below the output directory or, for None, below tests/."""
    return Path(_local(out) or "tests") / "counterexamples"


def _local(out: str | Path | None) -> str | Path | None:
    if "://" in str(out):
        raise OutputError(f"out={out}: only `fuzz-attn run --out` takes an address")
    return out


def folder_name(text: str) -> str:
    """Return the text as a name for a folder, without slashes, colons and blanks, and not long."""
    return shortened(re.sub(r"[^\w.-]+", "-", text).strip("-."))


def make_folder(folder: Path) -> None:
    """Make a folder; raises :class:`OutputError` if it cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror}") from error
    check_writable(folder)


def check_writable(folder: Path) -> None:
    """Raise :class:`OutputError` if a folder, which need not exist, cannot be made or written."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise OutputError(f"{folder}: cannot be made: {place} is no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: cannot be written: {place} is read-only for this user")


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder has a name of :func:`new_run_folder` and holds an event log."""
    return _NAME.fullmatch(folder.name) is not None and any(folder.rglob(EVENT_LOGS))


def prune(runs: Path, *, kept: int = KEPT_RUNS) -> None:
    """Delete the oldest run folders in a folder, so that ``kept`` remain.

    Only folders that hold an event log and have a name of :func:`new_run_folder` are deleted, and none of a run that
    may still go on, here or on another machine.
    """
    found = sorted(filter(is_run_folder, runs.glob("*")))
    for folder in found[: max(0, len(found) - kept)]:
        if not _goes_on(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _goes_on(folder: Path) -> bool:
    """Return whether the run of a folder may still go on: it wrote lately, or a process of its number runs here."""
    named = _NAME.fullmatch(folder.name)
    assert named is not None
    return _idle_seconds(folder) < IDLE_SECONDS or _is_running(int(named[1]))


def _idle_seconds(folder: Path) -> float:
    """Return how long nothing was written in a folder; 0 where that cannot be told."""
    try:
        written = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return 0.0
    return time.time() - written


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class Journal:
    """A file that holds the last text written, at any time all of it or nothing; spaces may follow the text.

    A text of at most a page is written in place. To replace the file, as for longer texts, makes the file system write
    to the disk at once, which takes a tenth of a case.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._next = path.with_suffix(".part")
        self._file: int | None = None
        self._length = 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, text: bytes) -> None:
        """Replace the text in the journal; raises :class:`OutputError` where it cannot be written."""
        try:
            self._write(text)
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _write(self, text: bytes) -> None:
        if self._file is not None and max(len(text), self._length) <= PAGE:
            os.pwrite(self._file, text.ljust(self._length), 0)
        else:
            self._next.write_bytes(text)
            self._next.replace(self.path)
            self._close()
            self._file = os.open(self.path, os.O_WRONLY)
            self._length = 0
        self._length = max(len(text), self._length)

    def close(self, *, keep: bool) -> None:
        """Delete the journal unless ``keep``."""
        self._close()
        if not keep:
            self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


TRITON_CACHE: Final = "TRITON_CACHE_DIR"
"""Where Triton keeps what it compiles, one folder for each kernel."""
KERNELS: Final = "triton"
MOST_BYTES_OF_KERNELS: Final = 8 * 2**30
IN_USE_SECONDS: Final = 24 * 3600.0
"""A kernel that was used within this time is not deleted: another run may be about to load it."""


@contextmanager
def compiled_kernels_in(out: Path, backend: str, most_bytes: int = MOST_BYTES_OF_KERNELS) -> Iterator[None]:
    """Let processes started meanwhile keep compiled kernels in ``out/triton``, of which at most ``most_bytes`` remain.

    The user's own ``TRITON_CACHE_DIR`` stays as it is; it is pruned only if it lies in ``out``. Nothing is done where
    nothing is compiled, which is without a GPU.
    """
    if not compiles(backend):
        yield
        return
    before = os.environ.get(TRITON_CACHE)
    folder = Path(before or out / KERNELS).absolute()
    if folder.is_relative_to(out.absolute()):
        prune_kernels(folder, most_bytes)
    os.environ[TRITON_CACHE] = str(folder)
    try:
        yield
    finally:
        del os.environ[TRITON_CACHE]
        if before is not None:
            os.environ[TRITON_CACHE] = before


def compiles(backend: str) -> bool:
    """Return whether kernels are compiled for a backend on this machine, as far as that is known without torch."""
    return may_use_gpu(backend) and bool(visible_gpus(os.environ))


def prune_kernels(folder: Path, most_bytes: int) -> None:
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
