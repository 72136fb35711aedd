"""Seeded bugs: a folder of TOML files whose tables are one bug each. The name of a file is its class of bugs.

An edit replaces a text that occurs exactly once in a file of ``kernels/``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from fuzz_attn.case.plain import Plain
from fuzz_attn.errors import SeededBugError
from fuzz_attn.foreign_files import content_of
from fuzz_attn.operations.registry import FamilyName


class Edit(Plain, frozen=True):
    """``anchor`` occurs once in ``file`` (below kernels/) and becomes ``replacement``."""

    file: str
    anchor: str
    replacement: str


class SeededBug(Plain, frozen=True):
    """One bug. ``seen_in`` names projects that shipped it, with issue numbers; ``shown_by`` inputs that reveal it."""

    families: tuple[FamilyName, ...]
    wrong: str
    shown_by: str
    edits: tuple[Edit, ...]
    seen_in: tuple[str, ...] = ()
    name: str = ""
    file: str = ""


def load_seeded_bugs(folder: Path) -> tuple[SeededBug, ...]:
    """Return every seeded bug of a folder's TOML files, by file and then in the file's order.

    Raises :class:`SeededBugError` for a folder without any, a file that cannot be read, or a name that occurs twice.
    """
    found: dict[str, SeededBug] = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            tables = msgspec.toml.decode(content_of(path), type=dict[str, SeededBug])
        except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
            raise SeededBugError(f"seeded bugs {str(path)!r}: {error}") from error
        for name, table in tables.items():
            if name in found:
                raise SeededBugError(f"seeded bug {name!r} occurs in {found[name].file} and in {path.name}")
            found[name] = msgspec.structs.replace(table, name=name, file=path.name)
    if not found:
        raise SeededBugError(f"folder {str(folder)!r} holds no seeded bug")
    return tuple(found.values())


def seeded_bug(folder: Path, name: str) -> SeededBug:
    """Return one seeded bug of a folder; raises :class:`SeededBugError` where there is none of that name."""
    for bug in load_seeded_bugs(folder):
        if bug.name == name:
            return bug
    raise SeededBugError(f"seeded bug {name!r} is not in the folder {str(folder)!r}")


def edited_copy(bug: SeededBug, kernels: Path, copy: Path) -> Path:
    """Return ``copy``, a new folder with the kernels and the edits of a seeded bug.

    Raises :class:`SeededBugError` unless every anchor occurs exactly once in its file, with the edits before it made.
    """
    shutil.copytree(kernels, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text in edited_texts(bug, kernels).items():
        (copy / file).write_text(text, encoding="utf-8")
    return copy


def edited_texts(bug: SeededBug, kernels: Path) -> dict[str, str]:
    """Return the text of each file of the kernels that a seeded bug edits, by its name below their folder.

    Raises :class:`SeededBugError` as :func:`edited_copy` does.
    """
    texts: dict[str, str] = {}
    for edit in bug.edits:
        path = kernels / edit.file
        text = texts.get(edit.file) or (path.read_text(encoding="utf-8") if path.is_file() else "")
        found = text.count(edit.anchor)
        if found != 1:
            raise SeededBugError(f"seeded bug {bug.name!r}: anchor {edit.anchor!r} occurs {found} times in {edit.file}")
        texts[edit.file] = text.replace(edit.anchor, edit.replacement)
    return texts
