"""Rejections: errors of Triton's compiler as LoweringErrors, which name the rejected line and the reason."""

from __future__ import annotations

import linecache
import traceback
from typing import Final

from fuzz_attn.errors import LoweringError
from fuzz_attn.owners import is_in_library
from fuzz_attn.ttir.triton_compat import (
    STATED,
    STATIC_ASSERT,
    Position,
    causes_of,
    compiled_at,
    is_triton_error,
    name_of,
    reason_of,
)

_LIBRARY: Final = ("language/", "runtime/", "_utils.py")
"""Parts of Triton that raise what the language does not allow, for the compiler and for the interpreter."""


def rejected(error: BaseException, kernel: str) -> LoweringError:
    """Return the rejection of a kernel by the front end, which raised `error`."""
    causes = causes_of(error)
    positions = [position for cause in reversed(causes) for position in compiled_at(cause)]
    return _rejection(f"Triton cannot lower {kernel}: {error}", name_of(causes[-1]), causes[-1], positions)


def rejection_of(error: BaseException) -> LoweringError | None:
    """Return the rejection that an exception of a launch is, None for any other exception.

    In the interpreter, only what Triton's own code raises is a rejection.
    """
    if isinstance(error, LoweringError):
        return error
    if not is_triton_error(error):
        return None
    causes = causes_of(error)
    if is_triton_error(causes[-1]) or compiled_at(causes[-1]):
        return rejected(error, "a kernel")
    frames = traceback.extract_tb(causes[-1].__traceback__)
    if not frames or not _in_library(frames[-1].filename):
        return None
    name = STATIC_ASSERT if frames[-1].name == "_new_static_assert" else name_of(causes[-1])
    return _rejection(str(error), name, causes[-1], [place for cause in reversed(causes) for place in _run_at(cause)])


def _run_at(error: BaseException) -> list[Position]:
    """Return the statements of a kernel that the interpreter was running, the innermost function first."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return [
        Position(frame.filename, frame.lineno or 0, linecache.getline(frame.filename, frame.lineno or 0).strip())
        for frame in frames
    ]


def _rejection(message: str, name: str, root: BaseException, positions: list[Position]) -> LoweringError:
    """Return a rejection at the first position that is not in Triton's library."""
    place = next((position for position in positions if not _in_library(position.file)), Position("", 0, ""))
    return LoweringError(
        message,
        error=name,
        reason=reason_of(root),
        location=f"{place.file}:{place.line}" if place.file else "",
        source=place.source,
        stated=isinstance(root, STATED),
    )


def _in_library(file: str) -> bool:
    return is_in_library(file, "triton", *_LIBRARY)
