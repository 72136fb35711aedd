"""Settings: the table ``[tool.fuzz_attn]`` of the nearest pyproject.toml. Options and arguments win over it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from fuzz_attn.backends import BackendName
from fuzz_attn.case.families import Family
from fuzz_attn.errors import SettingsError

DEFAULT_MAX_TIME: Final = 60.0
"""Seconds of a run that has neither a time limit nor a case limit."""
DEFAULT_MEMORY: Final = "8G"
"""Memory of each worker: a target that exhausts the machine's would end other programs, too."""
TABLE: Final = "tool.fuzz_attn"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Defaults of a project, named and written as the options of ``fuzz-attn run``; None leaves the choice to it."""

    target: str | tuple[str, ...] | None = None
    family: Family | None = None
    backend: BackendName | None = None
    max_time: Annotated[float, Meta(gt=0)] | None = None
    max_cases: Annotated[int, Meta(gt=0)] | None = None
    workers: Literal["auto"] | Annotated[int, Meta(gt=0)] | None = None
    strict: bool | None = None
    out: str | None = None
    memory: str | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets, none where the table names none."""
        if self.target is None:
            return ()
        return (self.target,) if isinstance(self.target, str) else self.target


def bytes_of(size: str) -> int:
    """Return the bytes of a size such as ``512M`` or ``8G``, 0 for ``none``.

    Raises :class:`SettingsError` for another text.
    """
    if size == "none":
        return 0
    found = re.fullmatch(r"([1-9]\d*) ?([KMGT])(i?B)?", size, re.IGNORECASE)
    if found is None:
        raise SettingsError(f"{size!r} must be a size with a unit, such as 512M or 8G, or none")
    power: int = " KMGT".index(found[2].upper())
    return int(found[1]) << 10 * power


def command_line_defaults(settings: Settings) -> dict[str, object]:
    """Return the settings by the names of the parameters of ``fuzz-attn run``."""
    chosen = {name: value for name, value in msgspec.structs.asdict(settings).items() if value is not None}
    chosen.pop("target", None)
    return {**chosen, **({"targets": settings.targets} if settings.targets else {})}


def load_settings(folder: Path | None = None) -> Settings:
    """Return the settings of the nearest pyproject.toml, in a folder (by default the current one) or above it.

    Raises :class:`SettingsError` for a file that is no TOML, an unknown key or an impossible value.
    """
    start = (folder or Path.cwd()).absolute()
    for place in (start, *start.parents):
        path = place / "pyproject.toml"
        if path.is_file():
            return _settings_in(path)
    return Settings()


def _settings_in(path: Path) -> Settings:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("fuzz_attn", {})
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no TOML, a huge number
        raise SettingsError(f"{path}: cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: [{TABLE}] must be a table")
    unknown = sorted(set(table) - set(_keys()))
    if unknown:
        raise SettingsError(f"{path}: [{TABLE}] has an unknown key {unknown[0]!r}; known are: {', '.join(_keys())}")
    try:
        return msgspec.convert(table, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: [{TABLE}] {error}") from error


def _keys() -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(Settings)]
