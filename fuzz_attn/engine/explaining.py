"""Explaining: what a kernel does wrong in a saved counterexample, asked in a worker process."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fuzz_attn.binding.binding import Binding
from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.counterexamples.trust import trusted_call
from fuzz_attn.engine.failures.confirmation import order_of
from fuzz_attn.engine.isolated_worker import IsolatedWorker
from fuzz_attn.engine.orders import Order, Setup
from fuzz_attn.errors import CounterexampleError
from fuzz_attn.forensics.explanation import Explanation
from fuzz_attn.oracle.verdict import Verdict


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
    ``trust`` and ``named`` are those of :func:`fuzz_attn.engine.replay.replay`. Raises
    :class:`fuzz_attn.errors.FuzzAttnError` where the file is no counterexample or is not trusted, the target does not
    load, or its process ends before there is an explanation.
    """
    found = counterexample.load(path)
    name, stated = trusted_call(path, found, target, binding, trust=trust, named=named)
    setup = Setup(name, found.family, backend, memory=memory, binding=stated)
    with IsolatedWorker(setup) as worker:
        order = order_of(found)
        verdict = worker.judge(order).verdict
        if order.in_fresh_process:
            worker.renew()
        answer = worker.judge(
            Order(found.case, found.relation, forensics=True, site=found.verdict.site, healthy=healthy)
        )
        if answer.explanation is None:
            raise CounterexampleError(f"{path}: could not be explained: {answer.verdict.message or answer.unsupported}")
        return Explained(found, verdict, answer.explanation)
