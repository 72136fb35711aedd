"""Backend: how Triton kernels run. A target does not know its backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fuzz_attn.backends.kernel_coverage import Mask
from fuzz_attn.errors import LaunchReachedInterrupt
from fuzz_attn.oracle.verdict import Kind

if TYPE_CHECKING:
    import torch

    from fuzz_attn.ttir.kernel_arithmetic import KernelArithmetic


class Observation(NamedTuple):
    """A defect that a backend saw while a kernel ran; the output may be right nevertheless.

    ``site`` is ``file:line`` of the access; empty where the backend does not know it. ``offset`` counts elements
    from the ``address`` of the tensor that was accessed, which is 0 where no element is meant.
    """

    kind: Kind
    message: str
    site: str = ""
    address: int = 0
    offset: int = 0


class Kernels(NamedTuple):
    """How many kernels were compiled, how many were loaded because another process had compiled them.

    ``seconds`` is the time of the compiler.
    """

    compiled: int = 0
    loaded: int = 0
    seconds: float = 0.0


@dataclass
class Watch:
    """What a backend saw while a target ran; complete when the context is left."""

    observations: list[Observation] = field(default_factory=list)
    launches: int = 0
    """Launches of kernels that the target has tried."""
    dead: torch.Tensor | None = None
    """Memory whose loads are observed as ``uninitialised``, where the backend has sanitizers."""
    host_only: bool = False
    """Whether the first launch ends the target."""

    def count_launch(self) -> None:
        """Count a launch that the target tries; raises :class:`LaunchReachedInterrupt` where it ends the target."""
        self.launches += 1
        if self.host_only:
            raise LaunchReachedInterrupt


class Backend(Protocol):
    """A way to run Triton kernels; chosen for a whole process, before any target is imported."""

    name: str
    device: str
    """The device of a case's tensors: ``cpu`` or ``cuda``."""
    sanitizers: bool
    """Whether it detects accesses out of bounds, uninitialised reads, races and overflows."""

    tensor_core_slack: float
    """The error of an addition in a dot product of narrow operands, in unit roundoffs; 1 means round to nearest."""
    forks_first: bool
    """Whether a process must fork before it initialises its device, whose state does not survive a fork."""
    compiles: bool
    """Whether a launch may wait for the compiler; set it to False to end such a launch instead."""

    def prepare(self) -> None:
        """Set up the process; must be called before Triton decorates the first kernel."""

    def start(self) -> None:
        """Initialise the device in the process that launches.

        Raises :class:`fuzz_attn.errors.BackendError` if that fails.
        """

    def gpu(self) -> tuple[int, int, int] | None:
        """Return the compute capability of the GPU and the number of its multiprocessors; None on a CPU."""

    def preflight(self) -> tuple[str, ...]:
        """Check loads, casts and dots of each dtype, and return the shims that are needed.

        Raises :class:`fuzz_attn.errors.BackendError` if the arithmetic is wrong and no shim fixes it.
        """

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the summary must know about how kernels run here, as sentences."""

    def running(self) -> AbstractContextManager[Watch]:
        """Return the context in which a target is called; nothing stays patched outside of it.

        Raises :class:`fuzz_attn.errors.UnsupportedByBackendError` for a kernel that this backend cannot run though it
        compiles, :class:`fuzz_attn.errors.DeviceLostError` if the launch broke the device for this process, and
        :class:`fuzz_attn.errors.DeviceFullError` if other processes have left too little memory.
        """

    def unrecorded(self, *, own: bool = True) -> AbstractContextManager[None]:
        """Return a context in which masks are not recorded.

        Without ``own``, the launches are not the target's own, and nothing is read of how their kernels round.
        """

    def reaches_large_offsets(self) -> bool:
        """Return whether a cache may span tens of gigabytes of addresses, most of them never accessed."""

    def arithmetic(self) -> frozenset[KernelArithmetic]:
        """Return how each kernel launched so far rounds."""

    def announce(self, compiling: Callable[[bool], None]) -> None:
        """Call back before a kernel is compiled, with False, and when that has ended, with True.

        A launch that compiles takes seconds longer; for a CPU nothing is compiled.
        """

    def new_masks(self) -> tuple[Mask, ...]:
        """Return the masks of kernels with new outcomes since the last call; a compiled kernel has none."""

    def new_kernels(self) -> Kernels:
        """Return how many kernels the targets' launches have compiled since the last call; 0 on a CPU."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence numpy's floating-point warnings while the context lasts."""
    import numpy as np  # noqa: PLC0415 - the commands that run no kernel import this module and need no numpy

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
