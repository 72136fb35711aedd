"""Answers: what stubs return, from ``answers.toml`` and from a file of the user's own."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from fuzz_attn.errors import TargetError


@dataclass(frozen=True)
class Answers:
    """The modules that are always stubs, and values by dotted name: ``name`` of an attribute, ``name()`` of a call."""

    modules: frozenset[str] = frozenset()
    values: dict[str, Any] = field(default_factory=dict)


def answers_of(package: str, file: Path | None = None) -> Answers:
    """Return the answers for a package; the tables of ``file`` replace those that come with fuzz_attn.

    A file has a table for each module that is replaced by a stub, with its attributes. A value such as
    ``"torch.float8_e4m3fn"`` is the dtype of that name. Raises :class:`TargetError` for a file that cannot be read.
    """
    shipped = tomllib.loads(resources.files(__package__).joinpath("answers.toml").read_text())
    tables = {module: table for module, table in shipped.items() if _within(module, package)}
    if file is not None:
        tables |= _read(file)
    values = {f"{module}.{name}": _value(value) for module, table in tables.items() for name, value in table.items()}
    return Answers(frozenset(tables), values)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _read(file: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise TargetError(f"{file}: cannot be read: {error}") from error
    for module, table in tables.items():
        if not isinstance(table, dict):
            raise TargetError(f"{file}: {module!r} must be a table with the attributes of a module")
    return tables


def _value(value: object) -> object:
    import torch  # noqa: PLC0415 - heavy

    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value
