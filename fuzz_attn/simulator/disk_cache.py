"""A folder of generated programs, by all that they depend on, within a limit of size."""

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
from pathlib import Path
from typing import Any, Final

import triton

from fuzz_attn.simulator.codegen.program import Program
from fuzz_attn.simulator.codegen.tree.statements import Origin
from fuzz_attn.simulator.findings import Location
from fuzz_attn.simulator.frontend.ir import Type

LIMIT_BYTES: Final = 256 * 2**20
"""If a folder holds more, the files used longest ago are removed until three quarters of it are left."""
CHECK_EVERY: Final = 256
"""A cache looks at its folder's size when it stores its first program, and then after as many more."""

_STALE_SECONDS: Final = 3600.0
_OWN: Final = re.compile(r"[0-9a-f]{64}\.program|tmp\w+\.part")
"""The names of this module's files; no other file is ever removed."""


@functools.lru_cache(maxsize=1)
def generator_version() -> str:
    """Return a digest of the simulator's source and of the versions of Triton and Python."""
    digest = hashlib.sha256(triton.__version__.encode() + importlib.util.MAGIC_NUMBER)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(*parts: object) -> str:
    """Return the file name of a program: a digest of its parts' text and of the generator's version."""
    text = json.dumps([generator_version(), *map(repr, parts)])
    return hashlib.sha256(text.encode()).hexdigest()


def _encode(program: Program) -> bytes:
    fields = (
        program.name,
        program.source,
        *_encode_origins(program.origins),
        [(site.file, site.line) for site in program.sites],
        [(kind, site.file, site.line, several) for kind, site, several in program.coverage_sites],
        [(name, type_.element, type_.pointer) for name, type_ in program.parameters],
        sorted(program.stored),
        sorted(program.loaded),
        program.elements,
        program.sequential,
        program.compiled(),
    )
    body = marshal.dumps(fields)
    return hashlib.sha256(body).digest() + body


def _encode_origins(origins: list[Origin]) -> tuple[list[tuple[str, str, int]], list[int]]:
    """Return the different origins, and for each line the place of its own among them."""
    different = {origin: place for place, origin in enumerate(dict.fromkeys(origins))}
    fields = [(origin.operation, origin.location.file, origin.location.line) for origin in different]
    return fields, [different[origin] for origin in origins]


def _decode(data: bytes) -> Program:
    """Return the program of a file. Raises ValueError for a damaged one, which `marshal` itself might not survive."""
    digest, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("the digest does not fit")
    fields: tuple[Any, ...] = marshal.loads(body)  # noqa: S302 - the digest shows that it is our own file
    name, source, origins, lines, sites, coverage_sites, parameters, stored, loaded, elements, sequential, code = fields
    different = [Origin(operation, Location(file, line)) for operation, file, line in origins]
    return Program(
        name=name,
        source=source,
        origins=[different[place] for place in lines],
        sites=[Location(*site) for site in sites],
        coverage_sites=[(kind, Location(file, line), several) for kind, file, line, several in coverage_sites],
        parameters=[(name, Type(element, (), pointer)) for name, element, pointer in parameters],
        stored=frozenset(stored),
        loaded=frozenset(loaded),
        elements=elements,
        sequential=sequential,
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

    def get(self, key: str) -> Program | None:
        """Return the program stored under `key`, or None; it counts as used now."""
        path = self._folder / f"{key}.program"
        try:
            program = _decode(path.read_bytes())
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return program

    def put(self, key: str, program: Program) -> None:
        """Store a program. If the folder cannot be written to, nothing happens: the cache only saves time."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, suffix=".part")
            with os.fdopen(handle, "wb") as file:
                file.write(_encode(program))
            os.replace(name, self._folder / f"{key}.program")
            if self._stored % self._check_every == 0:
                self.prune()
            self._stored += 1

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
