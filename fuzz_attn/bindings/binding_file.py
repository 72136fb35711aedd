"""Binding file: the TOML file in which a user states how a target is called."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from fuzz_attn.bindings.binding import Binding, binding_of
from fuzz_attn.errors import BindingError
from fuzz_attn.foreign_files import content_of

LARGEST_BYTES: Final = 2**20
"""No binding file is larger."""


def read(path: Path) -> Binding:
    """Return the binding that a file states; raises :class:`BindingError`, in one line that names the file."""
    try:
        table = tomllib.loads(content_of(path, LARGEST_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, no TOML, a huge number
        raise BindingError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    known = Binding.__struct_fields__
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise BindingError(f"{path}: has an unknown key {unknown[0]!r}; known are: {', '.join(known)}")
    try:
        stated = binding_of(table)
    except BindingError as error:
        raise BindingError(f"{path}: {error}") from error
    assert stated is not None
    return stated
