"""Findings: what the sanitizers report, and the line of a kernel's source that each belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

import numpy.typing as npt

from fuzz_attn.ttir.ir import Location


class FindingKind(StrEnum):
    """The kinds of defects that the sanitizers find."""

    OUT_OF_BOUNDS_LOAD = "out-of-bounds load"
    OUT_OF_BOUNDS_STORE = "out-of-bounds store"
    UNINITIALISED_READ = "uninitialised read"
    RACE = "race"
    INTEGER_OVERFLOW = "integer overflow"
    DEVICE_ASSERT = "device assert"
    GRID_TOO_LARGE = "grid too large"
    CONFLICTING_STORE = "conflicting store"
    UNORDERED_LOAD = "unordered load"
    FALSE_HINT = "false hint"
    UNDEFINED_INTEGER = "undefined integer"


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect seen in a launch; `count` is how often it was seen, and the other fields belong to the first time.

    `program` is (x, y, z) in the grid. `index` counts elements from the tensor's first one, as strides do. `bounds` is
    the range of valid offsets, its end exclusive, or the range of valid integers. `address` is that of the tensor's
    first element, 0 where no element is meant.
    """

    kind: FindingKind
    kernel: str
    location: Location
    program: tuple[int, int, int]
    tensor: str
    index: int
    bounds: tuple[int, int]
    message: str
    count: int = 1
    address: int = 0

    def __str__(self) -> str:
        return f"{self.kind} in {self.kernel} at {self.location}: {self.message} (program {self.program})"

    @property
    def signature(self) -> tuple[str, str, str, int, str]:
        """Kind, kernel, file, line and tensor; findings that agree in these are one defect."""
        return (self.kind.value, self.kernel, self.location.file, self.location.line, self.tensor)

    def follows_from(self, other: Finding) -> bool:
        """Return whether an access outside of a tensor is at an offset that a 32-bit overflow has wrapped around."""
        outside = self.kind in (FindingKind.OUT_OF_BOUNDS_LOAD, FindingKind.OUT_OF_BOUNDS_STORE)
        same = (self.kernel, self.tensor) == (other.kernel, other.tensor)
        if not (outside and same and other.kind is FindingKind.INTEGER_OVERFLOW):
            return False
        return any(self.bounds[0] <= self.index + wrapped < self.bounds[1] for wrapped in _WRAPPED)


_WRAPPED: Final = (2**32, -(2**32), 2**33, -(2**33))
"""By how much an offset is wrong whose last operation has overflowed in 32 bits."""


class Reporter(Protocol):
    """What the sanitizers report to while a launch runs."""

    def report(
        self,
        kind: FindingKind,
        site: int,
        lanes: npt.NDArray[Any],
        row: int,
        tensor: str,
        index: int,
        bounds: tuple[int, int],
        message: str,
        count: int,
    ) -> None:
        """Record a finding of the source line numbered `site`, seen in the program `lanes[row]`."""
