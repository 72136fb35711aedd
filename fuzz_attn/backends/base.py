"""Backend: how Triton kernels run. A target does not know its backend."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fuzz_attn.verdict import Kind


class Observation(NamedTuple):
    """Something wrong that a backend saw while a kernel ran, which its output need not show."""

    kind: Kind
    message: str


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

    def prepare(self) -> None:
        """Set the process up; must come before Triton decorates the first kernel."""

    def preflight(self) -> tuple[str, ...]:
        """Check loads, casts and dots of each dtype and return the shims that were needed.

        Raises :class:`fuzz_attn.errors.BackendError` where the arithmetic is wrong and no shim is known.
        """

    def running(self) -> AbstractContextManager[Watch]:
        """Return the context in which a target is called; nothing stays patched outside of it.

        Raises :class:`fuzz_attn.errors.UnsupportedByBackendError` for a kernel that this backend cannot run.
        """
