"""MutantRun: one mutant while it is judged on case after case, and the limit of its processor time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from fuzz_attn.errors import HangInterrupt
from fuzz_attn.mutation.mutant import Mutant
from fuzz_attn.mutation.results import PROPERTIES, Evidence, Outcome, State
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.targets.target import Target


@dataclass
class MutantRun:
    """A mutant with its target and what the cases of one seed showed so far.

    ``undecided`` names what has not found the mutant yet: the campaign's properties and the fixed tolerances.
    ``seconds`` are the mutant's own, without what all mutants of its batch share.
    """

    mutant: Mutant
    target: Target
    undecided: set[str]
    seed: int = 0
    seconds: float = 0.0
    cases: int = 0
    reached: int = 0
    differed: int = 0
    changed: int = 0
    ratio: float = 0.0
    verdict: Verdict | None = None
    case: int = 0
    seconds_until_found: float = 0.0
    rules: dict[str, int] = field(default_factory=dict)
    invalid: str = ""

    def found(self, verdict: Verdict, case: int, seconds: float) -> None:
        """Record the verdict of the properties that killed the mutant, its case and the time until then."""
        self.undecided.remove(PROPERTIES)
        self.verdict, self.case, self.seconds_until_found = verdict, case, seconds

    def outcome(self) -> Outcome:
        """Return the outcome so far."""
        evidence = Evidence(self.cases, self.reached, self.differed, self.changed, self.ratio)
        if self.verdict is None:
            state: State = "invalid" if self.invalid else "survived" if self.changed else "unobserved"
            return Outcome(self.mutant, state, self.seed, message=self.invalid, rules=self.rules, evidence=evidence)
        return Outcome(
            self.mutant,
            "killed",
            self.seed,
            property_name=self.verdict.property_name,
            kind=self.verdict.kind,
            message=self.verdict.message,
            case=self.case,
            seconds=self.seconds_until_found,
            rules=self.rules,
            evidence=evidence,
        )


@contextmanager
def limited_processor_time(seconds: float) -> Iterator[None]:
    """Raise :class:`HangInterrupt` in the running Python code when this process has used that much time."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise HangInterrupt

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
