"""A folder of generated programs, by all that they depend on, within a limit of size.

The programs are source code, and what Python compiles it to, which this process executes. So a folder is used only if
no other user can write to it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import marshal
import os
import re
import tempfile
import time
import zlib
from pathlib import Path
from types import CodeType
from typing import Final

import msgspec
import triton

from fuzz_attn import ttir
from fuzz_attn.foreign_files import obstacle_to
from fuzz_attn.simulator.codegen.program import Program
from fuzz_attn.simulator.codegen.source_tree import Origin
from fuzz_attn.ttir.ir import Location, Type
from fuzz_attn.ttir.kernel_arithmetic import KernelArithmetic

LIMIT_BYTES: Final = 256 * 2**20
"""If a folder holds more, the files used longest ago are removed until three quarters of it are left."""
CHECK_EVERY: Final = 256
"""A cache looks at its folder's size when it stores its first program, and then after as many more."""

_STALE_SECONDS: Final = 3600.0
_OWN: Final = re.compile(r"[0-9a-f]{64}\.program|tmp\w+\.part")
"""The names of this module's files; no other file is ever removed."""


@functools.lru_cache(maxsize=1)
def generator_version() -> str:
    """Return a digest of the source that makes programs, of Triton's version, and of that of Python's compiled code."""
    digest = hashlib.sha256(triton.__version__.encode() + importlib.util.MAGIC_NUMBER)
    for folder in (Path(ttir.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(*parts: object) -> str:
    """Return the file name of a program: a digest of its parts' text and of the generator's version."""
    text = json.dumps([generator_version(), *map(repr, parts)])
    return hashlib.sha256(text.encode()).hexdigest()


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    """A program as its file contains it. ``lines`` has for each line of the source its place in ``origins``."""

    name: str
    source: str
    origins: list[tuple[str, str, int]]
    lines: list[int]
    sites: list[tuple[str, int]]
    coverage_sites: list[tuple[str, str, int, bool]]
    parameters: list[tuple[str, str, bool]]
    stored: list[str]
    loaded: list[str]
    elements: int
    sequential: bool
    arithmetic: KernelArithmetic
    undefined: bool
    shared: int
    code: bytes


def _encode(program: Program) -> bytes:
    different = {origin: place for place, origin in enumerate(dict.fromkeys(program.origins))}
    body = msgspec.json.encode(
        _Stored(
            name=program.name,
            source=program.source,
            origins=[(origin.operation, origin.location.file, origin.location.line) for origin in different],
            lines=[different[origin] for origin in program.origins],
            sites=[(site.file, site.line) for site in program.sites],
            coverage_sites=[(kind, site.file, site.line, several) for kind, site, several in program.coverage_sites],
            parameters=[(name, type_.element, type_.pointer) for name, type_ in program.parameters],
            stored=sorted(program.stored),
            loaded=sorted(program.loaded),
            elements=program.elements,
            sequential=program.sequential,
            arithmetic=program.arithmetic,
            undefined=program.undefined,
            shared=program.shared,
            code=zlib.compress(marshal.dumps(program.compiled()), level=1),
        )
    )
    return hashlib.sha256(body).digest() + body


def _decode(data: bytes) -> Program:
    """Return the program of a file. Raises ValueError for a damaged one."""
    digest, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("the digest does not fit")
    stored = msgspec.json.decode(body, type=_Stored)
    code = marshal.loads(zlib.decompress(stored.code))  # noqa: S302 - as the source, from a folder that only this user can write to
    if not isinstance(code, CodeType):
        raise ValueError("its code is none")
    different = [Origin(operation, Location(file, line)) for operation, file, line in stored.origins]
    return Program(
        name=stored.name,
        source=stored.source,
        origins=[different[place] for place in stored.lines],
        sites=[Location(*site) for site in stored.sites],
        coverage_sites=[(kind, Location(file, line), several) for kind, file, line, several in stored.coverage_sites],
        parameters=[(name, Type(element, (), pointer)) for name, element, pointer in stored.parameters],
        stored=frozenset(stored.stored),
        loaded=frozenset(stored.loaded),
        elements=stored.elements,
        sequential=stored.sequential,
        arithmetic=stored.arithmetic,
        undefined=stored.undefined,
        shared=stored.shared,
        code=code,
    )


class DiskCache:
    """A folder of programs, which several processes may share. A file that cannot be read counts as absent.

    Its files hold at most `limit` bytes, apart from the programs stored between two checks of the size.
    """

    def __init__(self, folder: Path, limit: int = LIMIT_BYTES, check_every: int = CHECK_EVERY) -> None:
        self._folder = folder
        self._limit = limit
        self._check_every = check_every
        self._stored = 0

    @functools.cached_property
    def obstacle(self) -> str:
        """Why the folder is not used: empty if it is. The first call makes the folder."""
        return obstacle_to(self._folder)

    def get(self, key: str) -> Program | None:
        """Return the program stored under `key`, or None; it counts as used now."""
        if self.obstacle:
            return None
        path = self._folder / f"{key}.program"
        try:
            program = _decode(path.read_bytes())
        except (OSError, ValueError, EOFError, TypeError, zlib.error):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return program

    def put(self, key: str, program: Program) -> None:
        """Store a program. If the disk is full or read-only, nothing happens: the cache only saves time."""
        if self.obstacle:
            return
        with contextlib.suppress(OSError):
            self._write(f"{key}.program", _encode(program))
            if self._stored % self._check_every == 0:
                self.prune()
            self._stored += 1

    def _write(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all."""
        handle, temporary = tempfile.mkstemp(dir=self._folder, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, self._folder / name)
        except BaseException:
            os.unlink(temporary)
            raise

    def prune(self) -> None:
        """Remove the files used longest ago if the folder holds more than the limit, and old unfinished ones.

        Other processes may do the same at the same time. A process that runs a removed program keeps it in memory;
        others generate it again.
        """
        found: list[tuple[float, int, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if _OWN.fullmatch(entry.name):
                    with contextlib.suppress(OSError):
                        status = entry.stat()
                        found.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        target = self._limit if total <= self._limit else self._limit * 3 // 4
        stale = time.time() - _STALE_SECONDS
        for used, size, path in sorted(found):
            abandoned = used < stale and not path.endswith(".program")
            if abandoned or (total > target and not path.endswith(".part")):
                total -= size
                with contextlib.suppress(OSError):
                    os.unlink(path)
