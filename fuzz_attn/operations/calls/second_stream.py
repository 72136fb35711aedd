"""Second stream: two calls in two streams of a GPU, the second of which runs in the middle of the first.

CUDA lets the work of two streams run in any order. One of these orders is made here: the first stream is held when the
first call has come to some line, the second call runs, and the first stream goes on. The second call's tensors get
their contents in its own stream, when the target has launched everything: what it launches elsewhere comes too early.

A stream that is held waits for a number in memory. A target that waits for its own work, as ``item`` does, would wait
for ever: where the host stands for a while, held streams are let go, and the order is the usual one.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from fuzz_attn.operations.calls.second_thread import AtLine

_DRIVER: Final = "libcuda.so.1"
_POLL_SECONDS: Final = 0.05
_STANDING_SECONDS: Final = 0.4
"""Where the host stands at one place for so long, it may wait for a stream that is held."""


class HeldStream:
    """A stream, and what of it waits until it is let go."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch has no types there
        self._word = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._gone = threading.Event()

    def hold(self) -> None:
        """Let all that follows in the stream wait; nothing waits where the driver cannot do that."""
        wait = ctypes.CDLL(_DRIVER).cuStreamWaitValue32_v2
        at_least_one = ctypes.c_uint32(1), ctypes.c_uint(0)
        wait(ctypes.c_void_p(self.stream.cuda_stream), ctypes.c_uint64(self._word.data_ptr()), *at_least_one)
        threading.Thread(target=self._watch, args=(threading.get_ident(),), daemon=True).start()

    def let_go(self) -> None:
        """Let the stream go on."""
        self._word.numpy()[0] = 1
        self._gone.set()

    def _watch(self, host: int) -> None:
        """Let the stream go where the host stands at one place."""
        place, standing = None, 0.0
        while standing < _STANDING_SECONDS and not self._gone.wait(_POLL_SECONDS):
            frame = sys._current_frames().get(host)
            now = None if frame is None else (frame.f_code, frame.f_lasti)
            standing = standing + _POLL_SECONDS if now == place else 0.0
            place = now
        self.let_go()


class FirstStream:
    """Where the first of two calls runs, and the ``work`` that makes the second one, in :attr:`second`."""

    def __init__(self, line: int, work: Callable[[], object]) -> None:
        self._line, self._work = line, work
        self._held = HeldStream()
        self.second = SecondStream(self._held)

    def around(self, call: Callable[[], Any]) -> Any:
        """Return the result of the first call, after the second one."""
        torch.cuda.synchronize()  # what the calls' tensors are made of is there for each stream
        try:
            with torch.cuda.stream(self._held.stream):
                result = AtLine(self._line, self._held.hold).around(call)
            self._work()
        finally:
            self._held.let_go()
            torch.cuda.synchronize()
        return result


class SecondStream:
    """Where the second call runs, while another stream is held."""

    def __init__(self, other: HeldStream) -> None:
        self._other, self._held = other, HeldStream()

    def around(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call."""
        stream = self._held.stream
        with torch.cuda.stream(stream):
            self._held.hold()
            try:
                result = call()
            finally:
                self._held.let_go()
        limit = time.monotonic() + _STANDING_SECONDS
        while not stream.query() and time.monotonic() < limit:
            time.sleep(_POLL_SECONDS / 50)
        self._other.let_go()
        return result
