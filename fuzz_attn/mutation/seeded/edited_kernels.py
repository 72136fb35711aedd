"""Kernels with a bug planted in them, imported under the project's own name beside the healthy ones.

A module keeps what it imported: once a launcher is loaded, the names it was imported by may go to the next version. So
many versions live in one process, and each is source code that Triton finds by its file.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import fuzz_attn
from fuzz_attn.case.families import Family
from fuzz_attn.mutation.seeded.bugs import Specimen, plant, specimen_named
from fuzz_attn.targets.loading import load_target
from fuzz_attn.targets.target import Target

PACKAGE: Final = "fuzz_attn.kernels"

_PLANTED: Final[list[TemporaryDirectory[str]]] = []
"""Edited copies of this process: Triton reads a kernel's source when it is first launched."""


def kernels_folder() -> Path:
    """Return where the project's kernels lie."""
    specification = importlib.util.find_spec(PACKAGE)
    assert specification is not None
    assert specification.submodule_search_locations is not None
    return Path(next(iter(specification.submodule_search_locations)))


@contextmanager
def imported_from(folder: Path) -> Iterator[None]:
    """Let ``fuzz_attn.kernels`` be the modules of a folder, all imported anew, for as long as the context lasts."""
    healthy, attribute = _taken_out(), getattr(fuzz_attn, "kernels", None)
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(folder)]
    sys.modules[PACKAGE] = package
    importlib.invalidate_caches()
    try:
        yield
    finally:
        _taken_out()
        sys.modules.update(healthy)
        if attribute is not None:
            fuzz_attn.kernels = attribute  # type: ignore[attr-defined] # set by the import of the submodule


def _taken_out() -> dict[str, types.ModuleType]:
    """Forget the package and all of its modules; return them."""
    names = [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]
    return {name: sys.modules.pop(name) for name in names}


def planted_target(specimen: Specimen, family: Family) -> Target:
    """Return the project's own target of a family, over kernels with a specimen's edits.

    The edited copy lives as long as this process. Raises :class:`~fuzz_attn.mutation.seeded.bugs.SpecimenError` for an
    anchor that does not fit.
    """
    folder = TemporaryDirectory(prefix="fuzz-attn-specimen-")
    _PLANTED.append(folder)
    with imported_from(plant(specimen, kernels_folder(), Path(folder.name))):
        return load_target(family)


def specimen_target(museum: Path, name: str, family: Family | None = None) -> Target:
    """Return the target of one specimen of a museum, in its first family where ``family`` is None.

    With it a file of two lines makes a specimen a target of `fuzz-attn run`.
    """
    specimen = specimen_named(museum, name)
    return planted_target(specimen, family or specimen.families[0])
