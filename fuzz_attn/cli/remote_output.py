"""Remote output: an output directory at an address that fsspec knows, such as s3://bucket/folder, and a local copy."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

import fsspec
import msgspec

from fuzz_attn.engine.run_folder import KERNELS, SUMMARY_NAME
from fuzz_attn.errors import OutputError
from fuzz_attn.foreign_files import private_folder, write_new

SENT: Final = "sent.json"
"""The file of a local copy that holds the digests of what lies at the address; the rest is still to be sent."""


@contextmanager
def remote_output(address: str) -> Iterator[Path]:
    """Yield a local folder with what a run needs of an address, and send what is new there, also after an error.

    The folder lies in the cache and stays. What an earlier run could not send is sent too. Raises
    :class:`OutputError` where the address cannot be read or written.
    """
    remote = _Remote(address)
    folder = private_folder("outputs") / hashlib.sha256(address.encode()).hexdigest()[:16]
    unsent = _unsent(folder)
    remote.receive(folder, unsent)
    _write_sent(folder, {name: digest for name, digest in _contents(folder).items() if name not in unsent})
    try:
        yield folder
    finally:
        remote.send(folder, _unsent(folder))
        _write_sent(folder, _contents(folder))


class _Remote:
    def __init__(self, address: str) -> None:
        self.address = address
        try:
            self.files, self.root = fsspec.core.url_to_fs(address)
        except (ValueError, ImportError, OSError) as error:
            raise OutputError(f"--out={address}: {error}") from error

    def receive(self, folder: Path, unsent: Collection[str]) -> None:
        """Copy what a run reads of earlier ones into a folder, which then holds no more of that but what is unsent."""
        for old in [name for name in _files(folder) if _is_read(name) and name not in unsent]:
            (folder / old).unlink()
        try:
            for path in self.files.find(self.root):
                name = str(path).removeprefix(str(self.root)).lstrip("/")
                if _is_read(name) and name not in unsent:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    self.files.get_file(path, str(folder / name))
        except Exception as error:  # each kind of address raises errors of its own
            raise OutputError(f"--out={self.address}: cannot be read: {error}") from error

    def send(self, folder: Path, new: Collection[str]) -> None:
        """Copy files of a folder to the address."""
        try:
            for path in new:
                place = f"{self.root}/{path}"
                self.files.makedirs(place.rpartition("/")[0], exist_ok=True)
                self.files.put_file(str(folder / path), place)
        except Exception as error:  # as above
            raise OutputError(f"--out={self.address}: cannot be written: {error}; all is in {folder}") from error


def _is_read(name: str) -> bool:
    """Return whether a run reads a file of earlier runs: a counterexample or a summary, in no other folder."""
    if ".." in PurePosixPath(name).parts or "\\" in name or "\0" in name:
        return False
    return name.startswith("counterexamples/") or (name.startswith("runs/") and name.endswith(f"/{SUMMARY_NAME}"))


def _files(folder: Path) -> list[str]:
    """Return the files below a folder by their paths in it, without compiled kernels."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [name for name in names if name != SENT and not name.startswith(f"{KERNELS}/")]


def _contents(folder: Path) -> dict[str, str]:
    """Return the digests of all files below a folder that are sent."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in _files(folder)}


def _unsent(folder: Path) -> list[str]:
    """Return the files of a folder that the address does not have as they are."""
    path = folder / SENT
    sent: dict[str, str] = {}
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):  # a file that was cut off: all is sent again
        sent = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    return [name for name, digest in _contents(folder).items() if sent.get(name) != digest]


def _write_sent(folder: Path, digests: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_new(folder / SENT, msgspec.json.encode(digests))
