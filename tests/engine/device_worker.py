"""A worker on a simulated device, to test device handling without a GPU.

``FUZZ_ATTN_TEST_DEVICE`` names the device's defect, ``FUZZ_ATTN_TEST_STARTS`` the file that records its starts: f for
one in a fork, s for one in the process that was set up. A launch that raises breaks the device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fuzz_attn import backends
from fuzz_attn.backends.backend import Watch
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.engine import case_judge
from fuzz_attn.engine.orders import Setup
from fuzz_attn.errors import BackendError, DeviceLostError
from fuzz_attn.workers.worker import serve

DEFECT = os.environ["FUZZ_ATTN_TEST_DEVICE"]
STARTS = Path(os.environ["FUZZ_ATTN_TEST_STARTS"])
SERVER = os.getpid()
COMPILE_SECONDS = 8.0


class SimulatedDevice(SimulatorBackend):
    forks_first = True

    def __init__(self) -> None:
        super().__init__()
        self.compiling: Callable[[bool], None] = lambda ended: None

    def announce(self, compiling: Callable[[bool], None]) -> None:
        if DEFECT != "slow":
            self.compiling = compiling

    def start(self) -> None:
        with STARTS.open("a") as file:
            file.write("f" if os.getpid() != SERVER else "s")
        if DEFECT == "dead" or (DEFECT == "no forks" and os.getpid() != SERVER):
            raise BackendError("the device does not answer")
        if DEFECT == "one start" and len(STARTS.read_text()) > 2:
            raise BackendError("the device does not answer")

    def preflight(self) -> tuple[str, ...]:
        if DEFECT == "cannot add":
            raise BackendError("the device cannot add")
        if DEFECT == "dies early":
            os._exit(7)
        return super().preflight()

    @contextmanager
    def running(self) -> Iterator[Watch]:
        if DEFECT in ("slow", "slow compiler"):
            self.compiling(False)
            time.sleep(COMPILE_SECONDS)
            self.compiling(True)
        with super().running() as watch:
            try:
                yield watch
            except Exception as error:
                raise DeviceLostError(f"CUDA error: {error}") from error


backends.backend_named = lambda name: SimulatedDevice()

if __name__ == "__main__":
    serve(lambda message: case_judge.load(msgspec.json.decode(message, type=Setup)))
