"""A worker on a device that is made up: what happens around a GPU, where there is none.

``FUZZ_ATTN_TEST_DEVICE`` says what is wrong with it, ``FUZZ_ATTN_TEST_STARTS`` names the file that counts its starts. A
launch that raises breaks the device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz_attn import backends
from fuzz_attn.backends.backend import Watch
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.engine import worker
from fuzz_attn.errors import BackendError, DeviceLostError

TROUBLE = os.environ["FUZZ_ATTN_TEST_DEVICE"]
STARTS = Path(os.environ["FUZZ_ATTN_TEST_STARTS"])
SERVER = os.getpid()


class MadeUpDevice(SimulatorBackend):
    forks_first = True

    def start(self) -> None:
        with STARTS.open("a") as file:
            file.write("f" if os.getpid() != SERVER else "s")
        if TROUBLE == "dead" or (TROUBLE == "no forks" and os.getpid() != SERVER):
            raise BackendError("the device does not answer")
        if TROUBLE == "one start" and len(STARTS.read_text()) > 2:
            raise BackendError("the device does not answer")

    def preflight(self) -> tuple[str, ...]:
        if TROUBLE == "cannot add":
            raise BackendError("the device cannot add")
        if TROUBLE == "dies early":
            os._exit(7)
        return super().preflight()

    @contextmanager
    def running(self) -> Iterator[Watch]:
        with super().running() as watch:
            try:
                yield watch
            except Exception as error:
                raise DeviceLostError(f"CUDA error: {error}") from error


backends.backend_named = lambda name: MadeUpDevice()

if __name__ == "__main__":
    worker.main()
