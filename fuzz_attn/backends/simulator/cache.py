"""Generated programs kept on disk, by everything that their source depends on."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import triton

from .codegen import Program
from .findings import Location
from .tree import Type


@functools.lru_cache(maxsize=1)
def generator_version() -> str:
    """Return a digest of the simulator's own source and of Triton's version: programs of another one are not used."""
    digest = hashlib.sha256(triton.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(*parts: object) -> str:
    """Return the file name of a program: a digest of its parts' text and of the generator's version."""
    text = json.dumps([generator_version(), *map(repr, parts)])
    return hashlib.sha256(text.encode()).hexdigest()


def _encode(program: Program) -> dict[str, Any]:
    return {
        "name": program.name,
        "source": program.source,
        "sites": [[site.file, site.line] for site in program.sites],
        "coverage_sites": [[kind, site.file, site.line] for kind, site in program.coverage_sites],
        "parameters": [[name, type_.element, type_.pointer] for name, type_ in program.parameters],
        "stored": sorted(program.stored),
        "loaded": sorted(program.loaded),
        "elements": program.elements,
        "sequential": program.sequential,
    }


def _decode(data: dict[str, Any]) -> Program:
    return Program(
        name=data["name"],
        source=data["source"],
        sites=[Location(*site) for site in data["sites"]],
        coverage_sites=[(kind, Location(file, line)) for kind, file, line in data["coverage_sites"]],
        parameters=[(name, Type(element, (), pointer)) for name, element, pointer in data["parameters"]],
        stored=frozenset(data["stored"]),
        loaded=frozenset(data["loaded"]),
        elements=data["elements"],
        sequential=data["sequential"],
    )


class DiskCache:
    """A folder of programs. A file that cannot be read counts as absent; several processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> Program | None:
        """Return the program stored under `key`, or None."""
        try:
            return _decode(json.loads((self._folder / f"{key}.json").read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, program: Program) -> None:
        """Store a program. A folder that cannot be written to is no error: the cache only saves time."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, suffix=".part")
            with os.fdopen(handle, "w") as file:
                json.dump(_encode(program), file)
            os.replace(name, self._folder / f"{key}.json")
