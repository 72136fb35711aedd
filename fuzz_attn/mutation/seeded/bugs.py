"""Specimens: bugs that somebody shipped, as edits of this project's kernels. A museum is a folder of TOML files.

Each table of a file is one specimen; the file's name is its class of bugs. An edit is a text that occurs exactly once
in a file of kernels/, and what stands there instead.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from fuzz_attn.case.families import Family
from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import FuzzAttnError


class SpecimenError(FuzzAttnError):
    """A museum that cannot be read, or an edit whose anchor does not occur exactly once."""


class Edit(Plain, frozen=True):
    """``anchor`` stands once in ``file`` (below kernels/) and becomes ``replacement``."""

    file: str
    anchor: str
    replacement: str


class Specimen(Plain, frozen=True):
    """One bug. ``seen_in`` names who shipped it, with tracker numbers; ``shown_by`` the inputs that tell it."""

    families: tuple[Family, ...]
    wrong: str
    shown_by: str
    edits: tuple[Edit, ...]
    seen_in: tuple[str, ...] = ()
    name: str = ""
    hall: str = ""


def load_museum(folder: Path) -> tuple[Specimen, ...]:
    """Return every specimen of a folder's TOML files, by file and then in the file's order.

    Raises :class:`SpecimenError` for a folder without any, a file that is no museum, or a name that occurs twice.
    """
    found: dict[str, Specimen] = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            tables = msgspec.toml.decode(path.read_bytes(), type=dict[str, Specimen])
        except msgspec.DecodeError as error:
            raise SpecimenError(f"museum file {str(path)!r}: {error}") from error
        for name, table in tables.items():
            if name in found:
                raise SpecimenError(f"specimen {name!r} occurs in {found[name].hall}.toml and in {path.name}")
            found[name] = msgspec.structs.replace(table, name=name, hall=path.stem)
    if not found:
        raise SpecimenError(f"museum {str(folder)!r} holds no specimen")
    return tuple(found.values())


def specimen_named(folder: Path, name: str) -> Specimen:
    """Return one specimen of a museum; raises :class:`SpecimenError` where it has none of that name."""
    for specimen in load_museum(folder):
        if specimen.name == name:
            return specimen
    raise SpecimenError(f"specimen {name!r} is not in the museum {str(folder)!r}")


def plant(specimen: Specimen, kernels: Path, folder: Path) -> Path:
    """Return a copy of a kernel folder, made below ``folder``, with the edits of a specimen.

    Raises :class:`SpecimenError` unless every anchor occurs exactly once, in the file as the edits before it left it.
    """
    copy = folder / specimen.name
    shutil.copytree(kernels, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in specimen.edits:
        path = copy / edit.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = text.count(edit.anchor)
        if found != 1:
            raise SpecimenError(
                f"specimen {specimen.name!r}: anchor {edit.anchor!r} occurs {found} times in {edit.file}"
            )
        path.write_text(text.replace(edit.anchor, edit.replacement), encoding="utf-8")
    return copy
