"""Trust: which code a counterexample file may have run. A file is data: it names a target, but does not choose it.

Without the user's word only targets run that the user has: built-in ones, installed entry points, and those that the
command line or the settings name. What a file says of the call is used if it cannot choose what the target does: roles,
layouts and conventions are, constants and the arguments of a constructor are not.
"""

from __future__ import annotations

import json
import shlex
import sys
import sysconfig
from collections.abc import Collection, Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from fuzz_attn.binding.binding import Binding, Constant
from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.errors import CounterexampleError
from fuzz_attn.foreign_files import target_points
from fuzz_attn.operations.registry import FAMILIES

_INSTALLED: Final = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib", "platstdlib")
)


def trusted_call(
    path: Path,
    found: Counterexample,
    target: str | None,
    binding: Binding | None,
    *,
    trust: bool,
    named: Collection[str] = (),
) -> tuple[str, Binding | None]:
    """Return the target and the binding to use for a file; nothing of the file is imported or made before.

    ``target`` and ``binding`` are the user's own and win. With ``trust`` the file's own are used. ``named`` are targets
    that the user names elsewhere, as in the settings. Raises :class:`CounterexampleError`, in one line that says what
    to type, for a target or a binding that the user must decide about.
    """
    if target is None and not (trust or found.target in named or is_installed(found.target)):
        raise CounterexampleError(
            f"{path}: names target={found.target!r}, and a file does not choose what code runs: add --target "
            f"{shlex.quote(found.target)}, or --trust if you trust the file, or name the target in [tool.fuzz_attn]"
        )
    replaced = target in FAMILIES and target != found.target  # by a built-in target, which the file's does not fit
    own = None if replaced else found.binding
    chosen = () if trust or binding is not None or own is None else tuple(chosen_values(own))
    if chosen:
        raise CounterexampleError(
            f"{path}: its binding chooses what the target gets ({', '.join(chosen)}): add --binding FILE with your "
            "own, or --trust if you trust the file"
        )
    return target or found.target, binding or own


def needs_trust(found: Counterexample) -> bool:
    """Return whether a file runs only with the user's word."""
    return not is_installed(found.target) or (found.binding is not None and any(chosen_values(found.binding)))


def only_says_how(binding: Binding) -> bool:
    """Return whether a run may call its target as a saved file says: without values, and without excusing the target.

    A domain limits what a target is tested on, and a rounding model what counts as wrong.
    """
    return not (any(chosen_values(binding)) or binding.domain or binding.rounding)


def chosen_values(binding: Binding) -> Iterator[str]:
    """Yield the places of a binding with values that go to the target's code as they are."""
    yield from (f"constants.{name}" for name in binding.constants)
    yield from ("instance" for _ in (binding.instance,) if binding.instance is not None)
    yield from (f"off.{role}" for role, value in binding.off.items() if not _is_number(value))


def _is_number(value: Constant) -> bool:
    """Return whether a constant is a number, several, or Python's None."""
    if isinstance(value, tuple | list):
        return all(map(_is_number, value))
    return value is None or value == "None" or isinstance(value, int | float)


def is_installed(target: str) -> bool:
    """Return whether a target is built in or an entry point of an installed package, which the user has chosen so."""
    if target in FAMILIES:
        return True
    points = [point for point in target_points() if point.name == target]
    return bool(points) and all(map(_is_installed_point, points))


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
