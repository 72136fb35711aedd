"""A worker on a simulated device that workers share through a simulated service, to test what a lost one is blamed on.

``FUZZ_ATTN_TEST_EVENTS`` names a folder. In it the file "starts" records each start of the device: s for one in the
service, a for one apart from it. The number in the file "refusals" says how often the service refuses a start. The
file "fault" makes the next launch in the service lose the device, as another worker's fault does; "broken harness"
makes that an exception outside of the launch. The number in the file "full" says how many launches find no memory left;
"no room" is the same outside of a launch, once. While the file "blocked" is there, no launch in the service ends.
A launch that raises loses the device everywhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch

from fuzz_attn import backends
from fuzz_attn.backends.backend import Watch
from fuzz_attn.backends.gpus import NO_DAEMON, PIPES
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.engine import case_judge
from fuzz_attn.engine.orders import Setup
from fuzz_attn.errors import BackendError, DeviceFullError, DeviceLostError
from fuzz_attn.ttir.kernel_arithmetic import KernelArithmetic
from fuzz_attn.workers import sharing
from fuzz_attn.workers.worker import serve

EVENTS = Path(os.environ["FUZZ_ATTN_TEST_EVENTS"])
for name, value in (("TRIES", 4), ("PAUSE_SECONDS", 0.01), ("ORDERS_APART", 3)):
    setattr(sharing, name, value)


class SharedDevice(SimulatorBackend):
    forks_first = True

    def start(self) -> None:
        pipes = Path(os.environ[PIPES])
        shared = pipes.name != NO_DAEMON
        with (EVENTS / "starts").open("a") as file:
            file.write("s" if shared else "a")
        if shared:
            left = int((EVENTS / "refusals").read_text())
            (EVENTS / "refusals").write_text(str(max(0, left - 1)))
            if left:
                raise BackendError("CUDA error: MPS server is not ready to accept new MPS client requests")
            (pipes / "clients").mkdir(exist_ok=True)
            (pipes / "clients" / str(os.getpid())).touch()
        self.shared = shared

    def arithmetic(self) -> frozenset[KernelArithmetic]:
        """Return what it returns; it is called outside of a launch."""
        if _happens("no room"):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if self.shared and _happens("broken harness"):
            raise RuntimeError("CUDA error: unspecified launch failure")
        return super().arithmetic()

    @contextmanager
    def running(self) -> Iterator[Watch]:
        with super().running() as watch:
            try:
                yield watch
            except Exception as error:
                raise DeviceLostError(f"CUDA error: {error}") from error
        while self.shared and (EVENTS / "blocked").exists():
            time.sleep(0.05)
        if left := int((EVENTS / "full").read_text()):
            (EVENTS / "full").write_text(str(left - 1))
            raise DeviceFullError("CUDA error: out of memory")
        if self.shared and _happens("fault"):
            raise DeviceLostError("CUDA error: an illegal memory access was encountered")


def _happens(event: str) -> bool:
    """Return whether an event is due, which happens once."""
    try:
        (EVENTS / event).unlink()
    except FileNotFoundError:
        return False
    return True


backends.backend_named = lambda name: SharedDevice()

if __name__ == "__main__":
    serve(lambda message: case_judge.load(msgspec.json.decode(message, type=Setup)))
