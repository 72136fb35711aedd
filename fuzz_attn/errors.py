"""Every exception of fuzz_attn, all derived from FuzzAttnError."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


class FuzzAttnError(Exception):
    """An error that the user can fix: the command line prints it in one line and exits with 2."""


class CaseError(FuzzAttnError, ValueError):
    """A case that contradicts itself or exceeds a bound. The message names field, value and bound."""


class ProbeError(FuzzAttnError):
    """A launch that should explain a failure did not end as the case's own did, so it tells nothing."""


class CounterexampleError(FuzzAttnError, ValueError):
    """A counterexample file that cannot be read: truncated, edited into nonsense, or of another schema version."""


class CoverageError(FuzzAttnError):
    """A folder or file that holds no coverage of a run."""


class OutputError(FuzzAttnError):
    """A folder or file that cannot be written."""


class ProcessError(FuzzAttnError):
    """A process that cannot be started, because the machine or a limit (``ulimit``) allows no more."""


class ReportError(FuzzAttnError):
    """A folder that holds no log of a run, a log that cannot be read, or a page that cannot be made or served."""


class MergeError(FuzzAttnError):
    """Folders that hold no runs to merge, or a log of a run that cannot be read."""


class SettingsError(FuzzAttnError):
    """A table ``[tool.fuzz_attn]`` that cannot be read, or that has unknown keys or values."""


class LedgerError(FuzzAttnError):
    """A ledger that cannot be read, or a row that contradicts itself or does not exist."""


class TargetError(FuzzAttnError):
    """A target that does not load, or whose signature fits no family."""


class BindingError(FuzzAttnError):
    """A binding that does not fit a target, or that could not compute its arguments: no defect of the target."""


class ReturnedOutputError(FuzzAttnError):
    """A target that returned no output, or one of another shape or type: a failure of the target."""


class BackendError(FuzzAttnError):
    """A backend that cannot run here, or whose preflight found wrong arithmetic."""


class UnsupportedByBackendError(BackendError):
    """A correct kernel that a backend cannot run, so that another backend must."""


class DeviceLostError(BackendError):
    """A device that a launch has broken for this process; only a new process can continue."""


class DeviceFullError(BackendError):
    """A device without memory for a launch, most of which other processes hold: the case has no verdict."""


class DomainError(FuzzAttnError):
    """A domain that allows nothing, or a case outside of a target's domain."""


class KernelError(FuzzAttnError, AssertionError):
    """A kernel that is wrong on the case of a test; raised by :func:`fuzz_attn.check`.

    ``verdict`` is what is wrong, ``case`` the case, and ``path`` the saved file, None while Hypothesis still shrinks.
    """

    def __init__(self, message: str, verdict: Any, case: Any, path: Path | None) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.case = case
        self.path = path


class NotJudgedError(FuzzAttnError):
    """A case that a test cannot judge: the target refuses it, or does not promise it."""


class SimulatorError(FuzzAttnError):
    """A launch that the simulator cannot run."""


class UnknownValueError(SimulatorError):
    """A value that is not known where a change of a kernel asks for it."""


class UnsupportedOperation(SimulatorError):  # noqa: N818 - an unsupported operation need not be an error of the user
    """An operation or argument that the simulator does not know; the interpreter may run the kernel."""

    def __init__(self, operation: str, location: object) -> None:
        super().__init__(f"{operation} is not supported, at {location}")
        self.operation = operation
        self.location = location


class LoweringError(SimulatorError):
    """A kernel that Triton's compiler rejects.

    ``error`` names the compiler's exception, ``reason`` is its text. ``location`` is ``file:line`` of the rejected line
    and ``source`` its text, both empty where the compiler names none. ``stated`` is true for a reason that the compiler
    or the kernel states, such as a shape that is not allowed; false for a defect, such as an unknown name.
    """

    def __init__(
        self,
        message: str,
        *,
        error: str = "",
        reason: str = "",
        location: str = "",
        source: str = "",
        stated: bool = False,
    ) -> None:
        super().__init__(message)
        self.error = error
        self.reason = reason
        self.location = location
        self.source = source
        self.stated = stated


class UnknownInstructionError(SimulatorError):
    """Assembly that the simulator cannot run; the text is the first instruction that it does not know."""


class WarpsAskedError(SimulatorError):
    """A kernel asks for its number of warps, which a launch chooses and the front end does not know."""


class LoopLimitError(SimulatorError):
    """A loop of a kernel that exceeds the simulator's limit of iterations."""


class OutOfTimeError(FuzzAttnError):
    """The caller's deadline passed while a launch was running; the worker was ended and the case has no verdict."""


class OutOfProbesError(FuzzAttnError):
    """The reduction of a refusal has used up its probes or its time."""


class SeededBugError(FuzzAttnError):
    """A folder of seeded bugs that cannot be read, or an edit whose anchor does not occur exactly once."""


class BudgetSpentInterrupt(BaseException):
    """Ends a round at once: the time of the run, or the cases of its shard, are spent."""


class ShareSpentInterrupt(BaseException):
    """Ends the shrinking of one failure, so that the search goes on."""


class LaunchReachedInterrupt(BaseException):
    """Ends a target at its first launch, where only its host code is asked for."""


class NotCompiledInterrupt(BaseException):
    """Ends a launch whose kernel is not compiled yet, where no case may wait for the compiler."""


class LoweredInterrupt(BaseException):
    """Ends a compilation after Triton's front end, where only that is asked for."""


class HangInterrupt(BaseException):
    """Ends a launch whose processor time is up. A target could catch an Exception."""
