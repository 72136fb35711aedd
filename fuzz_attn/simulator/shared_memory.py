"""Shared memory: a GPU refuses a kernel that needs more of it than a block may have."""

from __future__ import annotations

from typing import Final

from fuzz_attn.errors import LoweringError
from fuzz_attn.ttir.ir import Location

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
