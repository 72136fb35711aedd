"""Messages between a worker process and its parent, whatever the worker does: plain data, sent as JSON.

What it is set up with, is asked and answers are messages of its own, of any structure.
"""

import msgspec

RENEWED = 117
"""Exit status of a process that ends itself to be replaced by a fresh one."""
DEVICE_LOST = 114
"""Exit status of a process that ends itself because a launch broke its device."""
DEVICE_FULL = 119
"""Exit status of a process that ends itself because its device has no memory left."""
SHARES_AGAIN = 118
"""Exit status of a process that ends itself after its last order apart from a shared device."""
HARNESS_FAILED = 115
"""Exit status of a process that ends itself because the harness failed in it."""
CONNECTION_LOST = 116
"""Exit status of a process that ends itself because a target closed or replaced its connection."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Frozen data that refuses unknown fields."""


class Compiling(Message, frozen=True, tag="compiling"):
    """The worker compiles a kernel or starts its device, which takes seconds; ``ended`` when it goes on.

    It may precede the answer to any message, any number of times.
    """

    ended: bool = False


class DeviceStarted(Message, frozen=True, tag="device_started"):
    """The worker has started its device in the run of a Multi-Process Service.

    If it is ``shared``, a launch of another worker can break it or block it, so that a case may be innocent. ``note``
    is a sentence for the summary.
    """

    shared: bool
    note: str = ""


class Renew(Message, frozen=True, tag="renew"):
    """Asks a worker to answer from a process that has judged no case; it answers with :class:`Died`."""


class Died(Message, frozen=True, tag="died"):
    """The process that was to answer has died: its exit status, or minus the number of the signal that killed it.

    ``reason`` says why the worker killed it, if so. ``whole`` is true for the whole worker and false for a fork of it.
    """

    code: int
    reason: str = ""
    whole: bool = False


class HarnessFailed(Message, frozen=True, tag="harness_failed"):
    """The harness itself failed on an order, and the process has ended; ``error`` is the exception in one line.

    ``worker_ended`` is true where that process was the whole worker and not a fork of it.
    """

    error: str
    traceback: str
    worker_ended: bool = False


class Unsupported(Message, frozen=True, tag="unsupported"):
    """The backend cannot run the target's kernel, which may be correct."""

    reason: str


class Refused(Message, frozen=True, tag="refused"):
    """The worker cannot be set up, or cannot answer because the harness itself failed."""

    reason: str
