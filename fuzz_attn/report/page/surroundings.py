"""Surroundings of a page: where it lies, the run before and the trend to link to, how lines of source are linked."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from fuzz_attn.report.page.run_log import run_before
from fuzz_attn.report.page.sources import Places

PAGE_NAME: Final = "report.html"
PAGE_OF_RUNS: Final = "trend.html"


@dataclass(frozen=True)
class Surroundings:
    """What lies around a page: its folder, the addresses of other pages, and how the source is linked to.

    A page that is served lies in no ``folder``, and links to no file.
    ``before`` has the address of the run before, of each target that has one; ``trend`` is empty where there is none.
    """

    folder: Path | None = None
    before: dict[str, str] = field(default_factory=dict)
    trend: str = ""
    places: Places = field(default_factory=Places)


def surroundings(
    run: Path, targets: Iterable[str], page: Path, *, link: str = "", trend: Path | None = None
) -> Surroundings:
    """Return what lies around the page of a run's folder: only pages that exist, and a ``trend`` that is made later."""
    place = page.absolute().parent
    before = {target: earlier / PAGE_NAME for target in targets if (earlier := run_before(run, target)) is not None}
    later = run.absolute().parent / PAGE_OF_RUNS
    found = trend or (later if later.is_file() else None)
    return Surroundings(
        place,
        {target: _address(path, place) for target, path in before.items() if path.is_file()},
        _address(found, place) if found else "",
        Places(link),
    )


def _address(path: Path, place: Path) -> str:
    return quote(os.path.relpath(path.absolute(), place))
