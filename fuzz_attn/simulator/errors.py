"""The errors that the simulator raises."""

from __future__ import annotations

from fuzz_attn.simulator.findings import Location


class SimulatorError(Exception):
    """A launch that the simulator cannot carry out."""


class UnsupportedOperation(SimulatorError):  # noqa: N818 - the name that the design gives it
    """An operation of the IR that the simulator does not know: run the kernel in the interpreter instead."""

    def __init__(self, operation: str, location: Location) -> None:
        super().__init__(f"{operation} is not supported, at {location}")
        self.operation = operation
        self.location = location


class LoweringError(SimulatorError):
    """A kernel that Triton's front end refuses."""


class LoopLimitError(SimulatorError):
    """A `while` loop of a kernel that did not end within the limit of iterations."""
