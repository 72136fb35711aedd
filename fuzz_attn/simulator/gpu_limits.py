"""GPU limits: a GPU refuses a launch whose grid or whose need of shared memory exceeds one of them."""

from __future__ import annotations

from typing import Final

from fuzz_attn.errors import LoweringError
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


LIMIT: Final = 227 * 1024
"""The bytes that a block may have on an H100, the device that kernels are lowered for."""


def require_shared_memory(kernel: str, needed: int, location: Location) -> None:
    """Raise :class:`LoweringError` for a kernel that cannot have the shared memory it needs at least.

    Triton raises `OutOfResources` for it at the launch. What a kernel needs at least is the largest second operand of
    a dot: all of it is there at once, whatever the layouts and the number of warps. Copies in a pipeline, other
    operands and exchanges between threads come on top and are not estimated: a GPU refuses more kernels, and none
    fewer.
    """
    if needed > LIMIT:
        reason = f"out of resource: shared memory, required: at least {needed}, hardware limit: {LIMIT}"
        raise LoweringError(
            f"{kernel} cannot be launched: {reason}",
            error="OutOfResources",
            reason=reason,
            location=f"{location.file}:{location.line}",
            stated=True,
        )
