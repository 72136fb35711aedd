"""Answers: what known packages are told and what their stubs return, from ``answers.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Answers:
    """The modules that are always stubs, and values by dotted name: ``name`` of an attribute, ``name()`` of a call.

    ``environment`` has variables that the package reads, ``files`` prefixes of files that it does not
    import. ``without_gpu`` has attributes of modules that run on a machine without a GPU.
    """

    modules: frozenset[str] = frozenset()
    values: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    without_gpu: dict[str, dict[str, Any]] = field(default_factory=dict)


def answers_of(package: str) -> Answers:
    """Return the answers for a package.

    The file has a table for each module that is replaced by a stub, with its attributes. A value such as
    ``"torch.float8_e4m3fn"`` is the dtype of that name, and ``"None"`` Python's None, which TOML lacks.
    """
    told = tomllib.loads(resources.files(__package__).joinpath("answers.toml").read_text())
    tables = {module: table for module, table in told["modules"].items() if _within(module, package)}
    values = {f"{module}.{name}": _value(value) for module, table in tables.items() for name, value in table.items()}
    needs = told["packages"].get(package, {})
    without_gpu = {module: table for module, table in told["without_gpu"].items() if _within(module, package)}
    environment, files = needs.get("environment", {}), tuple(needs.get("files", ()))
    return Answers(frozenset(tables), values, environment, files, without_gpu)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _value(value: object) -> object:
    import torch  # noqa: PLC0415 - heavy

    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return None if value == "None" else value
