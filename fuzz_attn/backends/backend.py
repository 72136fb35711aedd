"""Backend: how Triton kernels run. A target does not know its backend."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fuzz_attn.coverage.mask_coverage import Mask
from fuzz_attn.oracle.verdict import Kind


class Observation(NamedTuple):
    """Something wrong that a backend saw while a kernel ran, which its output need not show."""

    kind: Kind
    message: str


class Kernels(NamedTuple):
    """How many kernels were made ready to run: compiled, or found compiled by an earlier process."""

    compiled: int = 0
    loaded: int = 0


@dataclass
class Watch:
    """What a backend saw while a target ran; complete once the context is left."""

    observations: list[Observation] = field(default_factory=list)


class Backend(Protocol):
    """One way to run Triton kernels; chosen for a whole process, before any target is imported."""

    name: str
    device: str
    """Where the tensors of a case live: ``cpu`` or ``cuda``."""
    sanitizers: bool
    """Whether it sees accesses out of bounds, uninitialised reads, races and overflows."""

    tensor_core_slack: float
    """What one addition in a dot product of narrow operands loses, in unit roundoffs: 1 where it rounds to nearest."""
    forks_first: bool
    """Whether a process must fork before its device wakes, since the device's state does not survive a fork."""

    def prepare(self) -> None:
        """Set the process up; must come before Triton decorates the first kernel."""

    def start(self) -> None:
        """Wake the device in the process that launches; raises :class:`fuzz_attn.errors.BackendError` if it cannot."""

    def preflight(self) -> tuple[str, ...]:
        """Check loads, casts and dots of each dtype and return the shims that were needed.

        Raises :class:`fuzz_attn.errors.BackendError` where the arithmetic is wrong and no shim is known.
        """

    def running(self) -> AbstractContextManager[Watch]:
        """Return the context in which a target is called; nothing stays patched outside of it.

        Raises :class:`fuzz_attn.errors.UnsupportedByBackendError` for a kernel that this backend cannot run, and
        :class:`fuzz_attn.errors.DeviceLostError` where the launch broke the device for this process.
        """

    def reaches_large_offsets(self) -> bool:
        """Return whether a cache may stretch over tens of gigabytes of addresses, most of them never touched."""

    def new_masks(self) -> tuple[Mask, ...]:
        """Return the masks of kernels that showed something new since the last call.

        Always empty on a backend that cannot see them.
        """

    def new_kernels(self) -> Kernels:
        """Return what the targets' launches have compiled since the last call; nothing where nothing is compiled."""
