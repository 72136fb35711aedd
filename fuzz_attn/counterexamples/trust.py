"""Trust: whether replaying a file may import the target that it names. Importing a target runs its code."""

from __future__ import annotations

import json
import sys
import sysconfig
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from typing import Final, get_args
from urllib.parse import unquote, urlsplit

from fuzz_attn.case.families import Family

ENTRY_POINT_GROUP: Final = "fuzz_attn.targets"
_INSTALLED: Final = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib", "platstdlib")
)


def is_installed(target: str) -> bool:
    """Return whether a target is built in or lies in an installed package, so that no file of others is imported.

    False for a path, a published package and a module of the current folder.
    """
    if target in get_args(Family):
        return True
    points = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == target]
    if points:
        return all(_is_installed_point(point) for point in points)
    module, _, _ = target.rpartition(":")
    return _is_module_name(module) and _is_installed_module(module)


def _is_module_name(place: str) -> bool:
    return not place.endswith(".py") and all(part.isidentifier() for part in place.split("."))


def _is_installed_point(point: EntryPoint) -> bool:
    """Return whether both an entry point and the module that it names are installed."""
    return point.dist is not None and _is_below(str(point.dist.locate_file(""))) and _is_installed_module(point.module)


def _is_installed_module(module: str) -> bool:
    """Return whether the first package of a module's name is found among the installed packages, and nowhere before."""
    top = module.partition(".")[0]
    specs = (finder.find_spec(top, None) for finder in sys.meta_path)  # not of sys.modules: a worker imports it anew
    found = next((spec for spec in specs if spec is not None), None)
    if found is None:
        return False
    places = list(found.submodule_search_locations or ()) or [found.origin or ""]
    return all(map(_is_below, places))


def _is_below(place: str) -> bool:
    path = Path(place).resolve()
    return any(map(path.is_relative_to, _INSTALLED)) or any(map(path.is_relative_to, _editable_folders()))


@lru_cache(maxsize=1)
def _editable_folders() -> tuple[Path, ...]:
    """Return the folders of packages that are installed in editable mode, as pip records them."""
    folders = []
    for package in distributions(path=[str(folder) for folder in _INSTALLED]):
        record = json.loads(package.read_text("direct_url.json") or "{}")
        if record.get("dir_info", {}).get("editable"):
            folders.append(Path(unquote(urlsplit(record["url"]).path)).resolve())
    return tuple(folders)
