"""Settings: the table ``[tool.fuzz_attn]`` of the nearest pyproject.toml. Options and arguments win over it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fuzz_attn.backends import BackendName
from fuzz_attn.errors import SettingsError
from fuzz_attn.operations.registry import FamilyName

DEFAULT_MAX_TIME: Final = 60.0
"""Seconds of a run that has neither a time limit nor a case limit."""
DEFAULT_MEMORY: Final = "8G"
"""Memory of each worker: a target that exhausts the machine's would end other programs, too."""
TABLE: Final = "tool.fuzz_attn"


NO_DEFAULTS: Final = ("shard", "ray", "json", "annotations", "verbose")
"""Options of ``fuzz-attn run`` that belong to one run, and that no other option of the command line takes back."""

_Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=1e9)]
_Number: TypeAlias = Annotated[int, Meta(gt=0, le=2**53)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Defaults of a project, named and written as the options of ``fuzz-attn run``; None leaves the choice to it.

    In names, an underscore is a dash. Paths are relative to the current folder, as on the command line.
    """

    target: str | tuple[str, ...] | None = None
    family: FamilyName | None = None
    binding: str | None = None
    backend: BackendName | None = None
    max_time: _Seconds | None = None
    max_cases: _Number | None = None
    until_flat: _Seconds | None = None
    continued: bool | None = msgspec.field(default=None, name="continue")
    seed: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    workers: Literal["auto"] | Annotated[int, Meta(gt=0, le=4096)] | None = None
    gpu_share: Annotated[float, Meta(gt=0, le=1)] | None = None
    mps: bool | None = None
    strict: bool | None = None
    out: str | None = None
    memory: str | None = None
    junit: str | None = None
    markdown: str | None = None

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
    stated: dict[str, object] = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name in stated:
            raise SettingsError(f"{path}: [{TABLE}] has {name!r} twice, with a dash and with an underscore")
        if name in NO_DEFAULTS:
            raise SettingsError(f"{path}: [{TABLE}] {key!r} is no default of a project: give it to each run")
        if name not in _keys():
            raise SettingsError(f"{path}: [{TABLE}] has an unknown key {key!r}; known are: {', '.join(_keys())}")
        stated[name] = value
    try:
        settings = msgspec.convert(stated, Settings)
        bytes_of(settings.memory or DEFAULT_MEMORY)
        return settings
    except (msgspec.ValidationError, SettingsError) as error:
        raise SettingsError(f"{path}: [{TABLE}] {error}") from error


def _keys() -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(Settings)]
