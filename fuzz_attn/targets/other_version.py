"""Other version: two versions of one kernel in one process, of which each finds its own modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from fuzz_attn.targets.target import Target


class OtherVersion:
    """The modules of another version of a target, which are found only within ``active``.

    They have the names of the target's own modules: those of its package, or those in the folder of its file.
    """

    def __init__(self, target: Target) -> None:
        self._own = _modules_of(target)
        self._tops = {name.partition(".")[0] for name in self._own}
        self._other: dict[str, ModuleType] = {}
        self._finders: list[Any] = sys.meta_path[:]
        folder = _folder_of(sys.modules[target.call.__module__]) if self._own else None
        self._path = [place for place in sys.path if Path(place).resolve() != folder]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Hide the target's own modules, and find those that the other version has imported within earlier."""
        finders, path, self._own = sys.meta_path[:], sys.path[:], self._taken()
        sys.modules.update(self._other)
        sys.meta_path[:], sys.path[:] = self._finders, self._path
        try:
            yield
        finally:
            self._other, self._finders, self._path = self._taken(), sys.meta_path[:], sys.path[:]
            sys.modules.update(self._own)
            sys.meta_path[:], sys.path[:] = finders, path

    def _taken(self) -> dict[str, ModuleType]:
        """Remove the modules of the names, and return them."""
        names = [name for name in sys.modules if name.partition(".")[0] in self._tops]
        return {name: sys.modules.pop(name) for name in names}


def _modules_of(target: Target) -> dict[str, ModuleType]:
    """Return the modules that belong to a target; none of this package's own."""
    name = str(getattr(target.call, "__module__", ""))
    top, dot, _ = name.partition(".")
    if name not in sys.modules or top == __name__.partition(".")[0]:
        return {}
    folder = None if dot else _folder_of(sys.modules[name])
    return {
        known: module
        for known, module in sys.modules.items()
        if known.partition(".")[0] == top
        or (folder is not None and not known.startswith("__") and _folder_of(module) == folder)
    }


def _folder_of(module: ModuleType) -> Path | None:
    """Return the folder of a module's file; None where it has none, or one without a folder, as torch.ops has."""
    file = getattr(module, "__file__", None)
    return Path(file).resolve().parent if isinstance(file, str) and Path(file).is_absolute() else None
