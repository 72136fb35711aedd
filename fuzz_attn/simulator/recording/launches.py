"""Launches: what was recorded of each launch, as digests of the values of its operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fuzz_attn.simulator.codegen.program import Program
from fuzz_attn.ttir.argument_types import Bound
from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Location, Operation, Value

Array = npt.NDArray[Any]

MOST_DIGESTS: Final = 1 << 23
"""Digests kept of one run of a target, 8 bytes each; what comes after them is not compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A place where a kernel records: an operation of its IR, and which of its values.

    ``part`` is what the value is to the operation, empty for its result. ``base`` names a pointer's tensor as the
    generated code does. ``arguments`` are the names of the operands that are arguments of the kernel, else empty.
    """

    operation: Operation
    part: str
    value: Value
    base: str = ""
    arguments: tuple[str, ...] = ()


@dataclass(slots=True)
class Entry:
    """One record: a site's number, the programs that ran it, and a digest for each, or one for all of them."""

    site: int
    lanes: Array
    digests: Array


@dataclass(slots=True)
class Launch:
    """One launch: its kernel, where the target launches it, its arguments in words, and its records in order.

    ``passed`` are the names of the arguments that are no constants.
    """

    kernel: str
    location: Location = UNKNOWN_LOCATION
    grid: tuple[int, int, int] = (1, 1, 1)
    arguments: dict[str, str] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    entries: list[Entry] = field(default_factory=list)

    def position(self, programs: Array) -> tuple[Array, Array, Array]:
        """Return the x, y and z of programs' numbers."""
        _, ny, nz = self.grid
        return programs // (ny * nz), programs // nz % ny, programs % nz

    def has(self, position: tuple[int, int, int]) -> bool:
        """Return whether the grid has a program at (x, y, z)."""
        return all(axis < extent for axis, extent in zip(position, self.grid, strict=True))

    def tensor(self, base: str) -> str:
        """Return the name of the tensor that the generated code calls `A3`, for example."""
        return self.passed[int(base[1:])]

    def number(self, position: tuple[int, int, int]) -> int:
        """Return the number of the program at (x, y, z)."""
        x, y, z = position
        _, ny, nz = self.grid
        return (x * ny + y) * nz + z


def launch_of(program: Program, bound: Bound, grid: tuple[int, int, int], location: Location) -> Launch:
    """Return a launch without records."""
    arguments = {name: _in_words(value) for name, value in bound.values.items()}
    return Launch(program.name, location, grid, arguments, tuple(name for name, _ in program.parameters))


def _in_words(value: Any) -> str:
    """Return an argument in words: a number, or the type, the shape and the strides of a tensor."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} with strides {tuple(value.stride())}"
    return str(getattr(value, "__name__", repr(value)))


_WEIGHTS: Final = np.random.Generator(np.random.Philox(20261122)).integers(0, 1 << 63, 1 << 16, np.uint64) * 2 + 1
"""Odd numbers, so that a digest differs for sure where one element does."""


def digests_of(rows: Array) -> Array:
    """Return 64 bits for each row; any NaN counts as any other, since its bits say nothing of the arithmetic."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), np.array(np.nan, rows.dtype), rows)
    size = rows[0].size if len(rows) else 0
    bits = np.ascontiguousarray(rows).reshape(len(rows), size).view(f"u{rows.dtype.itemsize}")
    weights = _WEIGHTS if size <= _WEIGHTS.size else np.resize(_WEIGHTS, size)
    digests: Array = (bits.astype(np.uint64) * weights[:size]).sum(axis=1, dtype=np.uint64)
    return digests
