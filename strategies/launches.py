"""Launches: by which path, in how many segments and in which tiles a kernel is asked to run."""

from __future__ import annotations

from fuzz_attn.case.attention_case import LaunchHints
from fuzz_attn.case.domain import Domain

SEGMENTS = (2, 1, 3, 4, 7, 8, 16)
"""Segments of the 3D path, the simplest count that has something to merge first."""

ONE_BYTE_TILE = 32
"""The compiler's smallest dot of one-byte operands needs so many keys."""


def launch_paths(*, domain: Domain = Domain()) -> tuple[LaunchHints, ...]:  # noqa: B008 (frozen)
    """Return the paths of a domain without a tile hint, the launcher's own choice first, 3D in all segment counts."""
    simple = [LaunchHints(path=path) for path in ("auto", "2d") if path in domain.paths]
    segments = SEGMENTS if "3d" in domain.paths else ()
    return (*simple, *(LaunchHints(path="3d", num_segments=count) for count in segments))


def tile_sizes(*, domain: Domain = Domain()) -> tuple[int, ...]:  # noqa: B008 (frozen)
    """Return the tile hints of a domain, 0 (the launcher's choice) first."""
    return (0, *sorted(set(domain.tile_sizes))) if domain.tile_hint else (0,)


def tile_allowed(tile_size: int, *, one_byte: bool) -> bool:
    """Return whether a tile hint goes with one-byte operands, if there are any."""
    return tile_size == 0 or tile_size >= ONE_BYTE_TILE or not one_byte
