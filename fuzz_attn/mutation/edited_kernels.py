"""Edited kernels: copies of our kernels with a seeded bug, each imported as a package of its own.

The kernels import each other by relative names, so any number of copies live in one process beside the healthy ones.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from dataclasses import replace
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Final

from fuzz_attn.mutation.seeded_bugs import SeededBug, edited_copy, seeded_bug
from fuzz_attn.operations.registry import FamilyName, load_target
from fuzz_attn.targets.target import Target

PACKAGE: Final = "fuzz_attn.kernels"

_NUMBERS = count()


def kernels_folder() -> Path:
    """Return the folder of this project's kernels."""
    specification = importlib.util.find_spec(PACKAGE)
    assert specification is not None
    assert specification.submodule_search_locations is not None
    return Path(next(iter(specification.submodule_search_locations)))


def target_with(bug: SeededBug, family: FamilyName, scratch: Path) -> Target:
    """Return this project's own target of a family with a seeded bug, its edited kernels in a new folder of scratch.

    The folder must stay, because Triton reads the source of a kernel when it is first launched. Raises
    :class:`~fuzz_attn.errors.SeededBugError` for an anchor that does not fit.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{bug.name}-", dir=scratch)) / "kernels"
    package = _package_in(edited_copy(bug, kernels_folder(), folder))
    healthy = load_target(family, family, None)
    module = healthy.call.__module__.removeprefix(PACKAGE)
    edited = import_module(f"{package}{module}")
    return replace(healthy, call=getattr(edited, healthy.call.__name__))


def _package_in(folder: Path) -> str:
    """Return the name of a new package whose modules are the files of a folder."""
    package = ModuleType(f"fuzz_attn_edited_kernels_{next(_NUMBERS)}")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package
    return package.__name__


def target_with_seeded_bug(folder: Path, name: str, family: FamilyName | None = None) -> Target:
    """Return the target of one seeded bug of a folder, in the bug's first family where ``family`` is None.

    A file of two lines that calls it makes a seeded bug a target of `fuzz-attn run`. The edited kernels stay in the
    folder for temporary files.
    """
    bug = seeded_bug(folder, name)
    return target_with(bug, family or bug.families[0], Path(tempfile.gettempdir()))
