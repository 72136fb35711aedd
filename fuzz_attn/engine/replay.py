"""Replay: runs saved counterexamples again, without Hypothesis, and reports whether each still fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.engine.events import Phase
from fuzz_attn.engine.failures.saved import played
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.judges.explanation import explained
from fuzz_attn.engine.judges.in_process import InProcess
from fuzz_attn.engine.messages import Answer, Order, Setup
from fuzz_attn.oracle.verdict import Verdict


@dataclass(frozen=True)
class Replayed:
    """One file replayed: its counterexample, the new verdict, and whether its tensors have other bits than then."""

    path: Path
    found: Counterexample
    verdict: Verdict
    drifted: bool
    sanitizers: bool
    """Whether the backend of the replay has sanitizers."""
    refused: bool = False
    """Whether the target or the compiler refuses the case."""
    unsupported: bool = False
    """Whether no backend that may be used can run the case."""

    @property
    def status(self) -> str:
        """``FAILED`` while the case fails, ``FIXED`` once it passes, ``REFUSED`` once the target refuses it.

        ``KNOWN`` and ``REGRESSED`` fail too, but the file says that the bug is known, or that it was fixed. ``PASSES``
        is the unexpected pass of a known bug. ``UNSEEN`` passes, but the failure may remain: it is flaky, or only
        sanitizers saw it and the backend of the replay has none. Writes outside a tensor are different, because guard
        bands see them on every backend.
        """
        if self.refused:
            return "REFUSED"
        if self.unsupported:
            return "UNSEEN"
        if not self.verdict.passed:
            return {"open": "FAILED", "known": "KNOWN", "fixed": "REGRESSED"}[self.found.status]
        found = self.found.verdict
        seen = self.sanitizers or found.property_name != "sanitizers" or found.kind == "written_outside"
        if not seen or self.found.confirmation == "flaky":
            return "UNSEEN"
        return "PASSES" if self.found.status == "known" else "FIXED"

    @property
    def still_fails(self) -> bool:
        """Whether a reader must act: the case fails, or it is unseen here and its file is not marked fixed."""
        return self.status in ("FAILED", "REGRESSED") or (self.status == "UNSEEN" and self.found.status == "open")


@dataclass(frozen=True)
class _Launches:
    """The launches of one worker; a target in this process cannot be renewed."""

    worker: IsolatedWorker | InProcess

    def judge(self, order: Order, phase: Phase) -> Answer:
        return self.worker.judge(order)

    def renew(self) -> None:
        if isinstance(self.worker, IsolatedWorker):
            self.worker.renew()


def replay(
    paths: tuple[Path, ...], *, target: str | None = None, backend: str = "auto", in_process: bool = False
) -> Iterator[Replayed]:
    """Yield each file, replayed on its own target or on another; each target has one worker process.

    A failure that depends on earlier cases is replayed after them, and a flaky one several times, until it fails.
    With ``in_process`` the targets run in this process, and failures are not explained, which takes more launches.

    All files are read before the first one runs, so that a bad file is reported at once. Raises
    :class:`fuzz_attn.errors.CounterexampleError` for a bad file and :class:`fuzz_attn.errors.TargetError` for a bad
    target.
    """
    loaded = [(path, counterexample.load(path)) for path in paths]
    workers: dict[str, IsolatedWorker | InProcess] = {}
    with ExitStack() as stack:
        for path, found in loaded:
            name = target or found.target
            if name not in workers:
                setup = Setup(name, found.family, backend)
                worker: IsolatedWorker | InProcess = InProcess(setup) if in_process else IsolatedWorker(setup)
                stack.enter_context(worker)
                workers[name] = worker
            digest = workers[name].judge(Order(found.case, digest=True)).digest
            order = Order(found.case, found.relation)
            answer = played(found, _Launches(workers[name]), "confirm")
            verdict = answer.verdict
            if not in_process:
                verdict = explained(workers[name], order, verdict)
            drifted = bool(found.digest) and digest != found.digest
            refused, unsupported = answer.refusal is not None, bool(answer.unsupported) and not answer.judged
            yield Replayed(path, found, verdict, drifted, workers[name].ready.sanitizers, refused, unsupported)
