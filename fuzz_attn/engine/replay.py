"""Replay: runs saved counterexamples again, reports whether each still fails, and explains one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import msgspec

from fuzz_attn import counterexamples
from fuzz_attn.binding.binding import Binding
from fuzz_attn.counterexamples import Counterexample, trusted_call
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.events import Phase
from fuzz_attn.engine.failures.confirmation import explained, order_of
from fuzz_attn.engine.failures.saved import NOT_PROMISED, REFUSES, Played, played
from fuzz_attn.engine.failures.triage import failures_of
from fuzz_attn.engine.isolated_worker import EXPLAINING, LAUNCH_SECONDS, IsolatedWorker
from fuzz_attn.engine.orders import Answer, Order, Setup
from fuzz_attn.errors import BackendError, CounterexampleError, FuzzAttnError, UnsupportedByBackendError
from fuzz_attn.forensics.explanation import Explanation
from fuzz_attn.operations.registry import FamilyName, operation_of
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
    refused: str = ""
    """Why the case is not judged: the target or the compiler refuses it, or the target does not promise it."""
    unsupported: bool = False
    """Whether no backend that may be used can run the case."""
    backend: str = ""
    """The backend of the replay."""
    others: tuple[Verdict, ...] = ()
    """Failures of other classes than the file's, which ``verdict`` is the first of if the file's does not show."""

    @property
    def status(self) -> str:
        """``FAILED`` while the case fails, ``FIXED`` once it passes, ``REFUSED`` once the target refuses it.

        ``KNOWN`` and ``REGRESSED`` fail too, but the file says that the bug is known, or that it was fixed. Such a mark
        covers the class of failure that the file has: ``CHANGED`` fails in another way, or also in another way.
        ``PASSES`` is the unexpected pass of a known bug. ``UNSEEN`` passes, but the failure may remain: it is flaky, or
        only sanitizers saw it and the backend of the replay has none, or only another backend shows it. Writes outside
        a tensor are different, because guard bands see them on every backend.
        """
        if self.refused:
            return "REFUSED"
        if self.unsupported:
            return "UNSEEN"
        if not self.verdict.passed:
            changed = self.others and (self.found.status == "known" or self.verdict in self.others)
            marked = {"known": "KNOWN", "fixed": "REGRESSED"}
            return "FAILED" if self.found.status == "open" else "CHANGED" if changed else marked[self.found.status]
        found = self.found.verdict
        seen = self.sanitizers or found.property_name != "sanitizers" or found.kind == "written_outside"
        if not seen or self.found.confirmation == "flaky" or self.found.unseen_on(self.backend):
            return "UNSEEN"
        return "PASSES" if self.found.status == "known" else "FIXED"

    @property
    def still_fails(self) -> bool:
        """Whether a reader must act: the case fails, or it is unseen here and its file is not marked fixed."""
        if self.status == "UNSEEN":
            return self.found.status == "open"
        return self.status in ("FAILED", "REGRESSED", "CHANGED")

    @property
    def message(self) -> str:
        """What fails, in words; of a changed failure, also what its file does not say."""
        if self.status != "CHANGED":
            return self.verdict.message
        others = "; ".join(f"{verdict.what}: {verdict.message}" for verdict in self.others)
        return f"it fails in another way than the file says ({self.found.verdict.what}): {others}"


@dataclass(frozen=True)
class _Launches:
    """The launches of one worker; a target in this process cannot be renewed."""

    worker: IsolatedWorker | InProcess

    def judge(self, order: Order, phase: Phase) -> Answer:
        return self.worker.judge(order)

    def renew(self) -> None:
        if isinstance(self.worker, IsolatedWorker):
            self.worker.renew()


def _raise(path: Path, error: FuzzAttnError) -> None:
    raise error


def replay(
    paths: tuple[Path, ...],
    *,
    target: str | None = None,
    backend: str = "auto",
    memory: int = 0,
    in_process: bool = False,
    trust: bool = True,
    named: Collection[str] = (),
    binding: Binding | None = None,
    launch_seconds: float = LAUNCH_SECONDS,
    on_start: Callable[[Path], None] = lambda path: None,
    on_error: Callable[[Path, FuzzAttnError], None] = _raise,
) -> Iterator[Replayed]:
    """Yield each file, replayed on its own target or on another; each target has one worker process.

    A failure that depends on earlier cases is replayed after them, and a flaky one several times, until it fails.
    With ``in_process`` the targets run in this process, and failures get no hint, which takes more launches. A verdict
    that is the file's in all else keeps the explanation of the file.
    With the backend ``auto``, a case that fails in the simulator only is replayed there.
    Each target is called with ``binding``, or else as its file says. Without ``trust``, a file decides neither what
    code runs nor what values it gets, apart from ``target`` and ``named`` targets
    (:func:`fuzz_attn.counterexamples.trusted_call`). A launch that has not ended after ``launch_seconds`` is a
    hang. ``on_start`` is called with each file before it is replayed, and ``on_error`` with one that cannot be
    replayed, because it is no counterexample, it is not trusted or its target does not load; the rest goes on.
    """
    with ExitStack() as stack:
        workers = _Workers(stack, memory, launch_seconds, in_process=in_process)
        for path in paths:
            on_start(path)
            try:
                found = counterexamples.load(path)
                name, stated = trusted_call(path, found, target, binding, trust=trust, named=named)
                chosen = EXPLAINING if backend == "auto" and found.passes_where_found and not in_process else backend
                yield _replayed(path, found, workers.on(name, found.family, stated, chosen))
            except FuzzAttnError as error:
                on_error(path, error)


class _Workers:
    """The worker of each target, started when it is needed first; one that does not start is not tried again."""

    def __init__(self, stack: ExitStack, memory: int, launch_seconds: float, *, in_process: bool) -> None:
        self._stack = stack
        self._memory = memory
        self._launch_seconds = launch_seconds
        self._in_process = in_process
        self._found: list[tuple[Setup, Worker | FuzzAttnError]] = []

    def on(self, name: str, family: FamilyName, binding: Binding | None, backend: str) -> Worker:
        """Return the worker of a target on a backend; raises :class:`FuzzAttnError` if it does not load."""
        setup = Setup(name, family, backend, memory=self._memory, binding=binding)
        found = next((worker for known, worker in self._found if known == setup), None) or self._started(setup)
        if isinstance(found, FuzzAttnError):
            raise found
        return found

    def _started(self, setup: Setup) -> Worker | FuzzAttnError:
        """Return a new worker, or the error where it does not start."""
        limit = self._launch_seconds
        worker = InProcess(setup) if self._in_process else IsolatedWorker(setup, launch_seconds=limit)
        started: Worker | FuzzAttnError = worker
        try:
            self._stack.enter_context(worker)
        except FuzzAttnError as error:
            started = error
        self._found.append((setup, started))
        return started


def _replayed(path: Path, found: Counterexample, worker: Worker) -> Replayed:
    ready = worker.ready
    lacking = operation_of(found.case).unpromised(found.case, ready.domain)
    if lacking:
        refused = NOT_PROMISED.format(lacking)
        return Replayed(path, found, Verdict("oracle"), False, ready.sanitizers, refused, backend=ready.backend)
    digest = worker.judge(Order(found.case, digest=True)).digest
    result = played(found, _Launches(worker), "confirm")
    verdict = _shown(result)
    if isinstance(worker, IsolatedWorker) and result.own:
        verdict = explained(worker.judge, order_of(found), verdict)
    kept = {name: getattr(found.verdict, name) for name in ("explanation", "cause", "weights")}
    in_words = msgspec.structs.replace(verdict, **kept)
    if in_words == found.verdict:
        verdict = in_words
    answer, others = result.answer, tuple(each for failing in result.others for each in failures_of(failing.answer))
    drifted = bool(found.digest) and digest != found.digest
    refused = REFUSES if answer.refusal is not None and result.passed else ""
    unsupported = bool(answer.unsupported) and not answer.judged and result.passed
    return Replayed(path, found, verdict, drifted, ready.sanitizers, refused, unsupported, ready.backend, others)


def _shown(result: Played) -> Verdict:
    """Return the verdict of the file's class, else another failure, else the pass."""
    if result.own:
        return result.own[0]
    return result.others[0].answer.verdict if result.others else result.answer.verdict


class InProcess:
    """Judges cases as an isolated worker does, but a crash of the target ends this process, and nothing has a limit.

    Only one backend can be used in a process. Raises :class:`fuzz_attn.errors.FuzzAttnError` on entering where the
    target or the backend cannot be set up.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def __enter__(self) -> Self:
        """Load the target and the backend."""
        self._judge = load(self.setup)
        self.ready = self._judge.ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Leave the process as it is."""

    def judge(self, order: Order, *, deadline: float | None = None) -> Answer:
        """Return the answer to an order; raises :class:`BackendError` where the backend cannot run the kernel."""
        try:
            return self._judge.judge(order)
        except UnsupportedByBackendError as error:
            raise BackendError(f"{error}; try --backend interpreter") from error


Worker: TypeAlias = IsolatedWorker | InProcess


@dataclass(frozen=True)
class Explained:
    """The explanation of a counterexample, and the verdict on its case now, which may have passed."""

    found: Counterexample
    verdict: Verdict
    explanation: Explanation


def explanation_of(
    path: Path,
    *,
    target: str | None = None,
    backend: str = "auto",
    memory: int = 0,
    trust: bool = True,
    named: Collection[str] = (),
    binding: Binding | None = None,
    healthy: str = "",
) -> Explained:
    """Return the explanation of a saved failure on its own target or on another.

    With ``healthy``, a target that is right on the case, it also names the first operation that gives another value
    there.
    ``trust`` and ``named`` are those of :func:`replay`. Raises
    :class:`fuzz_attn.errors.FuzzAttnError` where the file is no counterexample or is not trusted, the target does not
    load, or its process ends before there is an explanation.
    """
    found = counterexamples.load(path)
    name, stated = trusted_call(path, found, target, binding, trust=trust, named=named)
    setup = Setup(name, found.family, backend, memory=memory, binding=stated)
    with IsolatedWorker(setup) as worker:
        order = order_of(found)
        verdict = worker.judge(order).verdict
        if order.in_fresh_process:
            worker.renew()
        answer = worker.judge(
            Order(found.case, found.relation, forensics=True, site=found.verdict.site, thorough=True, healthy=healthy)
        )
        if answer.explanation is None:
            raise CounterexampleError(f"{path}: could not be explained: {answer.verdict.message or answer.unsupported}")
        return Explained(found, verdict, answer.explanation)
