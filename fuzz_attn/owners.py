"""Owners: whose code a line is, the target's, a library's or the harness's. Every blame of a line asks here.

A library is known by the folder that it was imported from, not by a name: a target may lie in a folder named torch.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path
from typing import Final, Literal, TypeAlias

Owner: TypeAlias = Literal["target", "library", "harness"]

HARNESS: Final = Path(__file__).parent
_KERNELS: Final = (f"{HARNESS / 'kernels'}/", f"{(HARNESS / 'kernels').resolve()}/")
"""This project's own kernels are targets."""
_LIBRARIES: Final = ("torch", "triton", "numpy")
_WATCHERS: Final = ("__torch_function__", "__torch_dispatch__")
"""Functions of the harness that torch calls in the middle of its own."""
_PYTHON: Final = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_INSTALLED: Final = re.compile(r"(site|dist)-packages/")
"""Folders of installed packages, which may lie inside of Python's own."""
_DUMP: Final = "(most recent call first):"
"""How faulthandler's traceback begins. Python's own ends with the error, so all of it is kept."""
_FRAME: Final = re.compile(r'^ *File "(?P<file>.*)", line \d+(?:,)? in (?P<function>.*)$')
"""A line of a traceback of Python or of faulthandler."""


def owner_of(file: str, function: str = "") -> Owner:
    """Return whose code a file is; ``function`` is the name of the function that runs there, if it is known."""
    if file.startswith(f"{HARNESS}/") and not file.startswith(_KERNELS):
        return "library" if function in _WATCHERS else "harness"
    return "library" if file.startswith("<") or _is_python(file) or _is_library(file) else "target"


def is_in_library(file: str, library: str, *parts: str) -> bool:
    """Return whether a file is in one of some parts (files or folders) of an imported library."""
    return any(file.startswith(f"{folder}/{part}") for folder in _folders_of(library) for part in parts)


def without_callers(printed: str) -> str:
    """Return a printed text without the harness's frames below the target's in a traceback of faulthandler.

    It prints the innermost frame first: what follows the target's last frame called it. Without a frame of the target,
    nothing from the harness's first one on is kept.
    """
    before, began, dumped = printed.partition(_DUMP)
    lines = dumped.splitlines()
    owners = {number: _owner_of_line(line) for number, line in enumerate(lines)}
    last = max((number for number, owner in owners.items() if owner == "target"), default=-1)
    first = next((number for number, owner in owners.items() if owner == "harness" and number > last), len(lines))
    return before + began + "\n".join(lines[:first])


def _owner_of_line(line: str) -> Owner | None:
    """Return whose frame a line of a traceback names, None for another line."""
    found = _FRAME.match(line)
    return owner_of(found["file"], found["function"]) if found else None


def _is_python(file: str) -> bool:
    own = next((file.removeprefix(folder) for folder in _PYTHON if file.startswith(folder)), "")
    return bool(own) and not _INSTALLED.match(own)


def _is_library(file: str) -> bool:
    return any(is_in_library(file, name, "") for name in _LIBRARIES)


def _folders_of(library: str) -> tuple[str, ...]:
    """Return the folders of a library, none where it is not imported: then no line of it has run."""
    return tuple(getattr(sys.modules.get(library), "__path__", ()))
