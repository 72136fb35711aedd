"""Target source: how a script imports a target, by the name of its module or by the path of its file."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from fuzz_attn.targets.built_in import BUILT_IN_NAMES
from fuzz_attn.targets.loading import ENTRY_POINT_GROUP
from fuzz_attn.targets.published.place import place_of
from fuzz_attn.targets.target import Target


class Source(NamedTuple):
    """A module, by its name or the path of its file, and the dotted name of the callable in it."""

    module: str
    name: str

    def lines(self) -> list[str]:
        """Return the body of a function that imports and returns the callable."""
        if self.module.endswith(".py"):
            return [f"return function_of_file({str(Path(self.module).resolve())!r}, {self.name!r})"]
        return [f"from {self.module} import {self.name.partition('.')[0]}", "", f"return {self.name}"]


def source_of(spec: str, target: Target) -> Source:
    """Return where a script finds the callable of the loaded target that ``spec`` names.

    A target that is declared as a :class:`Target` is found where its callable is defined, so that the script does not
    need this package; where that is no name of a module, the script takes it from the declaration.
    """
    own = Source(target.call.__module__, getattr(target.call, "__qualname__", ""))
    if spec in BUILT_IN_NAMES:
        return own
    named = _named(spec)
    loaded = f"fuzz_attn_target_{Path(named.module).stem}" if named.module.endswith(".py") else named.module
    if not isinstance(_found(Source(loaded, named.name)), Target):
        return named
    if _found(own) is not target.call:
        return Source(named.module, f"{named.name}.call")
    file = getattr(sys.modules[own.module], "__file__", None)
    return Source(str(file), own.name) if own.module.startswith("fuzz_attn_target_") else own


def _named(spec: str) -> Source:
    """Return module and name of a specification; see :func:`fuzz_attn.targets.loading.load_target`."""
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == spec:
            return Source(point.module, point.attr)
    place = place_of(spec)
    if place is not None:
        return Source(place.module, place.attribute)
    module, _, name = spec.rpartition(":")
    return Source(module, name)


def _found(source: Source) -> object:
    """Return the object of that name in a module that is loaded, None where there is none."""
    found: object = sys.modules.get(source.module)
    for part in source.name.split("."):
        found = getattr(found, part, None)
    return found
