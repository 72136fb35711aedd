"""Sharing: whether the next fork of a worker shares the GPU through the run's Multi-Process Service (MPS).

A fatal fault of one client, such as an illegal address, reaches all clients of its GPU, and the service does not say
whose it was. So the fork after a lost device runs apart from the service, where no other worker's fault reaches it: if
the order passes there, it was another worker's fault, and the forks after that one share the GPU again. If the device
is lost there too, it is the order's own fault. The next ones then run apart for a while, because shrinking repeats the
fault, and each time it would take all other workers along. A launch that does not end is treated alike.

After a fault the service takes no new client until all clients have ended. A fork that waits for an order does not see
the fault, so the first worker that does leaves a mark, and forks that are older than the mark end.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

from fuzz_attn.backends.gpus import APART, FOLDER, broken_mark, variables
from fuzz_attn.workers.messages import DEVICE_LOST, HARNESS_FAILED, SHARES_AGAIN, DeviceStarted

CANNOT_START: Final = 112
"""Exit status of a fork that cannot start the device."""
NOT_READY: Final = 111
"""Exit status of a fork that finds no memory left, or that the service refuses: until all clients of a broken GPU have
ended it does so."""
ORDERS_APART: Final = 200
"""Orders that are judged apart from the service after an order has broken its device or did not end there."""
TRIES: Final = 40
"""How often a fork tries to share the GPU before it runs apart."""
PAUSE_SECONDS: Final = 0.25
NOTE: Final = "a worker could not share the GPU for a while, so it ran apart from CUDA's Multi-Process Service (MPS)"


class Sharing:
    """The way in which the next fork starts the device. ``active`` is False where the run has no service."""

    def __init__(self) -> None:
        self.active = FOLDER in os.environ
        self._orders = int(os.environ.get(APART, "0"))
        """How many orders the next fork judges apart from the service; 0 is any number, sharing the GPU."""
        self._tries = 0
        self._turned = False
        """Whether the device did not start in the other way."""
        self._begun = time.time()
        """When the next fork was begun; in a fork, when itself was."""
        self._mark = broken_mark(os.environ) if self.active else None

    @property
    def shared(self) -> bool:
        """Whether the next fork shares the GPU."""
        return self.active and not self._orders

    def enter(self) -> None:
        """Choose in a fork, before CUDA starts, how it uses the GPU."""
        if self.active:
            self._begun = time.time()
            os.environ.update(variables(os.environ, shared=self.shared))

    def started(self) -> DeviceStarted:
        """Return the message that the device has started."""
        return DeviceStarted(self.shared, NOTE if self._turned and not self.shared else "")

    def failure(self, error: Exception) -> int:
        """Return the exit status of a fork that cannot start the device."""
        waits = self.shared and any(word in str(error) for word in ("MPS", "out of memory"))
        return NOT_READY if waits else CANNOT_START

    def is_broken(self) -> bool:
        """Return whether another worker has broken the GPU for this fork, which shares it."""
        return self.shared and self._broken_at() > self._begun

    def _broken_at(self) -> float:
        with suppress(OSError):
            return self._mark.stat().st_mtime if self._mark is not None else 0.0
        return 0.0

    def count_order(self) -> None:
        """Count an order that a fork has answered; the last one apart from the service ends it."""
        if self.active and self._orders:
            self._orders -= 1
            if not self._orders:
                os._exit(SHARES_AGAIN)

    def after(self, code: int) -> None:
        """Decide how the next fork uses the GPU, by how one ended that had started the device."""
        if not self.active:
            return
        self._tries, self._turned = 0, False
        if code == DEVICE_LOST and self.shared and self._broken_at() < self._begun:
            self._mark_as_broken()
        self._begun = time.time()
        if code == DEVICE_LOST:
            self._orders = 1 if self.shared else ORDERS_APART
        elif code == -signal.SIGKILL and not self.shared:
            self._orders = ORDERS_APART  # as a rule it was killed because its launch did not end
        elif code == HARNESS_FAILED and self.shared:
            self._orders = 1  # a lost device makes the harness fail, too, if it computes with it
        elif code == SHARES_AGAIN:
            self._orders = 0

    def _mark_as_broken(self) -> None:
        """Let the forks of all workers that share the GPU and wait for an order end, which takes them a moment."""
        assert self._mark is not None
        with suppress(OSError):  # the folder goes with the service
            self._mark.touch()

    def another_way(self, code: int) -> bool:
        """Decide how the next fork starts the device, where one could not; return False if there is no way left."""
        if not self.active:
            return False
        self._begun = time.time()
        if code == NOT_READY and self._tries < TRIES:
            self._tries += 1
            time.sleep(PAUSE_SECONDS)
            return True
        if self._turned:
            self.active = False
            return False
        self._turned = True
        self._orders = ORDERS_APART if self.shared else 0
        return True
