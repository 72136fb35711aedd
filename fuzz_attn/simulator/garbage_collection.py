"""Python's garbage collector, paused while a program is made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector until the context is left; leave it as it is where it does not run.

    Triton's front end makes tens of thousands of objects for a kernel, which the collector would look at many times.
    Without this a program takes 1.08 times the time (30 programs each of the unified and the paged family), and more
    than half of the first minutes of a campaign goes to programs.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
