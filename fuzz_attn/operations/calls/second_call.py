"""Second call: runs in the middle of a first one, in another thread of the host or in another stream of a GPU.

The first thread waits meanwhile, so the same lines follow each other each time. Where the second thread waits for a
lock that the first one holds, the first one goes on, and both end together.

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
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch

from fuzz_attn.owners import is_in_library, owner_of

_POLL_SECONDS: Final = 0.05
_STANDING_SECONDS: Final = 1.0
"""A second thread that sleeps at one line of the target, or of a lock, for so long waits for the first one."""
_STILL_SECONDS: Final = 10.0
"""The same at any other line, such as one of a library that waits for a lock of its own."""


class AtLine:
    """Does something once, when a call has come to the ``line``-th line of the target's own."""

    def __init__(self, line: int, act: Callable[[], object]) -> None:
        self._line, self._act = line, act
        self._owners: dict[CodeType, str] = {}

    def around(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, value: Any) -> Any:
        """Count the target's own lines; at the one that is wanted, act."""
        if self._line <= 0 or (event == "call" and (self._owner(frame) != "target" or self._is_in_launch(frame))):
            return None
        if event == "line":
            self._line -= 1
            if self._line <= 0:
                sys.settrace(None)
                self._act()
                return None
        return self._trace

    def _owner(self, frame: FrameType) -> str:
        """Return whose frame it is: ``launch`` for one of Triton or of the harness, which stands for it."""
        code = frame.f_code
        if code not in self._owners:
            launch = is_in_library(code.co_filename, "triton", "") or owner_of(code.co_filename) == "harness"
            self._owners[code] = "launch" if launch else owner_of(code.co_filename)
        return self._owners[code]

    def _is_in_launch(self, frame: FrameType) -> bool:
        """Return whether a frame is part of a launch in a target: a hook, or what compiling a kernel imports.

        It runs only where a kernel is compiled, and while locks of the compiler are held.
        """
        launch, caller = False, frame.f_back
        while caller is not None and caller.f_code is not AtLine.around.__code__:
            owner = self._owner(caller)
            if launch and owner == "target":
                return True
            launch = launch or owner == "launch"
            caller = caller.f_back
        return False


class Meanwhile:
    """Work for a second thread in the middle of a call: at the ``line``-th line of the target's own that the call runs.

    A call that ends before has the work after it.
    """

    def __init__(self, line: int, work: Callable[[], object]) -> None:
        self._line, self._work = line, work
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def around(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call with the work in its middle; raises what either of them raises."""
        try:
            result = AtLine(self._line, self._run).around(call)
        finally:
            self._run()
            if self._thread is not None:
                self._thread.join()
        if self._error is not None:
            raise self._error
        return result

    def _run(self) -> None:
        """Run the work in a second thread, until it has ended or waits for this one; once."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._in_thread, name="fuzz_attn: a second thread")
        self._thread.start()
        place, standing, most = None, 0.0, _STANDING_SECONDS
        while standing < most:
            self._thread.join(_POLL_SECONDS)
            frame = sys._current_frames().get(self._thread.ident or 0)
            if not self._thread.is_alive() or frame is None:
                return
            now = frame.f_code, frame.f_lasti
            waits = owner_of(frame.f_code.co_filename) == "target" or frame.f_code.co_filename == threading.__file__
            standing = standing + _POLL_SECONDS if now == place and _sleeps(self._thread) else 0.0
            place, most = now, _STANDING_SECONDS if waits else _STILL_SECONDS

    def _in_thread(self) -> None:
        torch.set_num_threads(1)
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the first thread
            self._error = error


def _sleeps(thread: threading.Thread) -> bool:
    """Return whether a thread waits for something: on a busy machine one that could run stands still for long too.

    Only Linux tells; elsewhere each thread counts as asleep.
    """
    try:
        state = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "S"


_DRIVER: Final = "libcuda.so.1"
_POLL_STREAM_SECONDS: Final = 0.05
_STANDING_HOST_SECONDS: Final = 0.4
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
        while standing < _STANDING_HOST_SECONDS and not self._gone.wait(_POLL_STREAM_SECONDS):
            frame = sys._current_frames().get(host)
            now = None if frame is None else (frame.f_code, frame.f_lasti)
            standing = standing + _POLL_STREAM_SECONDS if now == place else 0.0
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
        stream.wait_stream(torch.cuda.current_stream())  # in which the call's tensors and their memory are still made
        with torch.cuda.stream(stream):
            self._held.hold()
            try:
                result = call()
            finally:
                self._held.let_go()
        limit = time.monotonic() + _STANDING_HOST_SECONDS
        while not stream.query() and time.monotonic() < limit:
            time.sleep(_POLL_STREAM_SECONDS / 50)
        self._other.let_go()
        return result
