"""The limits of a grid: a GPU refuses a launch that exceeds one of them."""

from __future__ import annotations

from typing import Final

from fuzz_attn.simulator.findings import Finding, FindingKind
from fuzz_attn.ttir.ir import Location

LIMITS: Final = {"x": 2**31 - 1, "y": 65535, "z": 65535}
"""The most programs along each axis, on NVIDIA GPUs of any age that Triton supports."""


def grid_finding(kernel: str, location: Location, extents: tuple[int, int, int]) -> Finding | None:
    """Return the finding of a grid that is too large along some axis, at the kernel's definition; None for others."""
    for (axis, limit), extent in zip(LIMITS.items(), extents, strict=True):
        if extent > limit:
            message = f"{extent} programs along {axis}, and a GPU launches at most {limit}"
            kind, bounds = FindingKind.GRID_TOO_LARGE, (0, limit + 1)
            return Finding(kind, kernel, location, (0, 0, 0), f"grid.{axis}", extent, bounds, message)
    return None
