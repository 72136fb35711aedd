"""Wheel: downloads single files of a published wheel into the cache folder.

Wheels with compiled kernels are hundreds of megabytes, of which a launcher needs a few Python files. pip chooses the
wheel, so its index and its certificates apply. The files are read with range requests; where the index does not serve
them, pip downloads the whole wheel once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zipfile
import zlib
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final
from uuid import uuid4

import msgspec
import requests
from remotezip import RemoteIOError, RemoteZip

from fuzz_attn.errors import TargetError
from fuzz_attn.foreign_files import private_folder

_URL: Final = "wheel.url"
_NAMES: Final = "names.json"
_FAILED: Final = "pip-failed.txt"
RETRY_SECONDS: Final = 60.0
"""pip is not asked again for so long after it has failed. A launcher may import a module in each call, so each
process of a worker would ask, which takes pip 4 to 12 seconds without a network."""
LARGEST_FILE: Final = 2**28
"""Bytes of the largest file that is unpacked."""
_NO_ARCHIVE: Final = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError)
"""What zipfile raises for an archive that is damaged or encrypted."""
_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check")


class Wheel:
    """One published version of a package. ``folder`` holds the files that were downloaded so far."""

    def __init__(self, package: str, version: str) -> None:
        self.requirement = f"{package}=={version}"
        self.folder = private_folder("published") / f"{package}-{version}"

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the wheel's files, with slashes."""
        stored = self.folder / _NAMES
        if not stored.exists():
            names = self._archive.namelist()
            _write(stored, msgspec.json.encode(names))
        try:
            return frozenset(filter(_is_inside, msgspec.json.decode(stored.read_bytes(), type=list[str])))
        except (OSError, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
            raise TargetError(f"{self.requirement}: {stored} cannot be read: {error}; delete it") from error

    def file(self, name: str) -> Path | None:
        """Return the path of a downloaded file, downloading it if need be; None if the wheel has none of that name."""
        if name not in self.names:
            return None
        path = self.folder / "files" / name
        if not path.exists():
            try:
                data = self._read(name)
            except (RemoteIOError, requests.RequestException, OSError, *_NO_ARCHIVE) as error:
                raise TargetError(f"{self.requirement}: {name} cannot be downloaded: {error}") from error
            _write(path, data)
        return path

    def _read(self, name: str) -> bytes:
        """Return the content of a file of the wheel; raises OSError for one that is no source and fills the memory."""
        size = self._archive.getinfo(name).file_size
        if size > LARGEST_FILE:
            raise OSError(f"it has {size} bytes, more than {LARGEST_FILE}")
        return self._archive.read(name)

    def provide(self, prefix: str) -> None:
        """Download all files whose names begin with a prefix."""
        for name in sorted(self.names):
            if name.startswith(prefix) and not name.endswith("/"):
                self.file(name)

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        whole = sorted(self.folder.glob("*.whl"))
        if whole:
            return self._opened(whole[0])
        try:
            remote: zipfile.ZipFile = RemoteZip(self._url)
        except (RemoteIOError, requests.RequestException):
            options = ("--no-deps", "--quiet", "--only-binary", ":all:")
            self._pip("download", *options, "-d", str(self.folder), self.requirement)
            return self._opened(next(iter(self.folder.glob("*.whl"))))
        return remote

    def _opened(self, path: Path) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(path)
        except (OSError, *_NO_ARCHIVE) as error:
            raise TargetError(f"{self.requirement}: {path} is no wheel: {error}; delete it") from error

    @property
    def _url(self) -> str:
        stored = self.folder / _URL
        if not stored.exists():
            options = ("--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-")
            report = self._pip("install", *options, "--only-binary", ":all:", self.requirement)
            _write(stored, json.loads(report)["install"][0]["download_info"]["url"].encode())
        return stored.read_text()

    def _pip(self, *arguments: str) -> bytes:
        self.folder.mkdir(parents=True, exist_ok=True)
        failed = self.folder / _FAILED
        if failed.exists() and time.time() - failed.stat().st_mtime < RETRY_SECONDS:
            raise TargetError(f"{failed.read_text()} (less than {RETRY_SECONDS:.0f} s ago)")
        command = [*_PIP, *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603 - our own
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["pip failed without a word"]
            message = f"{self.requirement} cannot be downloaded: {lines[-1]}"
            _write(failed, message.encode())
            raise TargetError(message)
        return done.stdout


def _is_inside(name: str) -> bool:
    """Return whether a name of an archive leads to a place within its folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name and "\0" not in name


def _write(path: Path, data: bytes) -> None:
    """Write a file, all of it or nothing, because several workers share the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid4().hex}.part")
    temporary.write_bytes(data)
    temporary.replace(path)
