"""Launches: the path, segments, tiles and options of the compiler that a case asks for, and the forms of its call."""

from __future__ import annotations

from itertools import combinations
from typing import Literal

from hypothesis import strategies as st

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import Argument, CallForm, LaunchHints, NumWarps
from fuzz_attn.strategies.draws import composite, lattice, sampled_from

SEGMENTS = (1, 2, 3, 4, 7, 8, 16, 64, 128)
"""Segments of the 3D path; 2 is the simplest count, with something to merge."""

ONE_BYTE_TILE = 32
"""Keys that the compiler's smallest dot product of one-byte operands needs."""


def launch_paths(*, domain: Domain = Domain()) -> tuple[LaunchHints, ...]:  # noqa: B008 (frozen)
    """Return the paths of a domain, the launcher's own choice first, 3D with each segment count."""
    simple = [LaunchHints(path=path) for path in ("auto", "2d") if path in domain.paths]
    segments = segment_counts(domain=domain) if "3d" in domain.paths else ()
    return (*simple, *(LaunchHints(path="3d", num_segments=count) for count in segments))


def segment_counts(*, domain: Domain = Domain()) -> tuple[int, ...]:  # noqa: B008 (frozen)
    """Return the numbers of segments worth trying in a domain, the simplest first."""
    return lattice(SEGMENTS, bounds=domain.segments, simplest=2)


def tile_sizes(*, domain: Domain = Domain()) -> tuple[int, ...]:  # noqa: B008 (frozen)
    """Return the tile hints of a domain, 0 (the launcher's choice) first."""
    return (0, *sorted(set(domain.tile_sizes))) if domain.tile_hint else (0,)


def warp_counts(*, domain: Domain = Domain()) -> tuple[NumWarps | Literal[0], ...]:  # noqa: B008 (frozen)
    """Return the numbers of warps that cases choose among, 0 (the launcher's choice) first."""
    return (0, *sorted(set(domain.num_warps))) if domain.launch_options else (0,)


def stage_counts(*, domain: Domain = Domain()) -> tuple[int, ...]:  # noqa: B008 (frozen)
    """Return the numbers of stages that cases choose among, 0 (the launcher's choice) first."""
    return (0, *sorted(set(domain.num_stages))) if domain.launch_options else (0,)


def optional_arguments(*, domain: Domain = Domain()) -> tuple[tuple[Argument, ...], ...]:  # noqa: B008 (frozen)
    """Return the optional arguments that cases have: none first, then each value by itself, then all pairs."""
    singles = [(name, value) for name, values in domain.arguments for value in values]
    together = [pair for pair in combinations(singles, 2) if pair[0][0] != pair[1][0]]
    return ((), *((each,) for each in singles), *together)


def tile_allowed(tile_size: int, *, one_byte: bool) -> bool:
    """Return whether a kernel can use a tile hint; one-byte operands need at least ``ONE_BYTE_TILE`` keys."""
    return tile_size == 0 or tile_size >= ONE_BYTE_TILE or not one_byte


_OTHER = sampled_from((False,) * 5 + (True,))
_SCALES: st.SearchStrategy[Literal["vector", "scalar", "expanded", "omitted"]] = sampled_from(
    ("vector", "expanded", "expanded", "scalar", "omitted")
)
_THREE = sampled_from((0, 1, 2))
_ROWS = sampled_from((0, 0, 1, 3))


@composite
def call_forms(draw: st.DrawFn) -> CallForm:
    """Return a strategy of forms, five in six of them the default; shrinks towards it."""
    if not draw(_OTHER):
        return CallForm()
    return CallForm(
        scales=draw(_SCALES),
        window=draw(_THREE),
        cache_name=draw(_THREE),
        extra_table_rows=draw(_ROWS),
        extra_output_rows=draw(_ROWS),
        extra_new_rows=draw(_ROWS),
    )
