"""Launches of Triton kernels, run in the simulator for as long as a `with` block lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fuzz_attn.simulator.runtime.heap import keep_freed_memory
from fuzz_attn.simulator.session import Session
from fuzz_attn.simulator.simulator import Simulator
from fuzz_attn.ttir.triton_compat import launches_replaced


@contextlib.contextmanager
def simulate(simulator: Simulator | None = None) -> Iterator[Session]:
    """Yield a session in which every `kernel[grid](...)` runs on the CPU, in place, on torch's CPU tensors.

    Without a simulator, a new one is used, which has to lower each kernel. Kernels may be decorated with or without
    TRITON_INTERPRET, and launched through heuristics or autotuners; the latter take their first configuration. Blocks
    may be nested: the innermost one runs the launch. Nothing stays patched.
    """
    keep_freed_memory()
    session = Session(simulator or Simulator())
    with launches_replaced(session.launch), session.watcher():
        yield session
