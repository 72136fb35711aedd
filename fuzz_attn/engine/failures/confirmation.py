"""Confirmation: runs a failing case again, in a fresh process, after the cases before it, and several times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.counterexample import Counterexample, Step
from fuzz_attn.engine.events import Phase
from fuzz_attn.engine.failures.triage import class_of, failures_of
from fuzz_attn.engine.orders import Answer, Order, Ready
from fuzz_attn.operations.registry import operation_of
from fuzz_attn.oracle.verdict import Verdict

LAST_CASES: Final = (16, 256)
"""How many of the worker's last cases are replayed before the failing one, few first."""
TRIES: Final = 10
"""How often a case runs that fails only sometimes."""
CHECKS: Final = 3
"""How often a failure must recur, without a pass, before it counts as certain: once can be chance."""


class Launches(Protocol):
    """What judges cases: a campaign, or a worker on its own."""

    def judge(self, order: Order, phase: Phase) -> Answer:
        """Return the answer to an order; may raise when the time is up."""

    def renew(self) -> None:
        """Let the next order be judged by a process that has judged none."""


Wanted: TypeAlias = Callable[[Verdict], bool]


@dataclass(frozen=True)
class Dependent:
    """What a failure depends on; the fields are those of a counterexample."""

    confirmation: Literal["state", "flaky"]
    sequence: tuple[Order, ...] = ()
    failed: int = 0
    tries: int = 0


def dependent(
    order: Order, failure_class: str, launches: Launches, before: Sequence[Order], checks: int = CHECKS
) -> Dependent:
    """Return what a failure depends on that does not recur in a fresh process: earlier cases, or chance.

    After earlier cases it must recur in all of some ``checks``.
    """
    sequence = sequence_before(order, failure_class, launches, before, checks)
    if sequence:
        return Dependent("state", sequence)
    failed = 1 + repeated(order, failure_class, launches)
    return Dependent("flaky", failed=failed, tries=TRIES + 2)  # with the first one, and the one in a fresh process


def repeated(order: Order, failure_class: str, launches: Launches) -> int:
    """Return how often an order fails of ``TRIES`` times."""
    return sum(showed(launches.judge(order, "confirm"), failure_class) for _ in range(TRIES))


def in_fresh_process(order: Order, launches: Launches) -> Answer:
    """Return the answer to an order in a fresh process."""
    launches.renew()
    return launches.judge(order, "confirm")


def order_of(found: Counterexample) -> Order:
    """Return the order that repeats the case of a counterexample."""
    return Order(found.case, found.relation)


def signed(order: Order, verdict: Verdict, target: str, ready: Ready) -> Counterexample:
    """Return a counterexample of an order, with its relation only where that may have caused the failure."""
    relation = verdict.property_name if verdict.property_name in operation_of(order.case).relations else None
    if verdict.kind in ("crash", "timeout"):
        relation = order.relation
    found = counterexample.signed(target, ready.family, relation, order.case, verdict)
    own = ready.binding
    promises = own.rounding or own.promises or "features" in own.domain  # a replay needs them too
    binding = None if ready.published and not promises else own
    environment = counterexample.environment_of(ready.backend, ready.shims)
    return msgspec.structs.replace(found, environment=environment, binding=binding)


def steps_of(sequence: Sequence[Order]) -> tuple[Step, ...]:
    """Return a sequence of orders as a counterexample has it."""
    return tuple(Step(order.case, order.relation) for order in sequence)


def shows(answer: Answer, failure_class: str) -> bool:
    """Return whether an answer has a failure of a class."""
    return any(class_of(verdict) == failure_class for verdict in failures_of(answer))


def showed(answer: Answer, failure_class: str) -> bool:
    """Return whether an answer has a failure of a class, or had it before the order was judged in a fresh process."""
    earlier = answer.earlier is not None and class_of(answer.earlier) == failure_class
    return earlier or shows(answer, failure_class)


def sequence_before(
    order: Order, failure_class: str, launches: Launches, before: Sequence[Order], checks: int = CHECKS
) -> tuple[Order, ...]:
    """Return the last cases before an order after which it fails each time, nothing if it passes."""
    for count in LAST_CASES:
        sequence = tuple(before[-count:])
        if sequence and all(after(sequence, order, failure_class, launches) for _ in range(checks)):
            return sequence
        if count >= len(before):
            break
    return ()


def after(sequence: Sequence[Order], order: Order, failure_class: str, launches: Launches) -> bool:
    """Return whether an order fails after a sequence in a fresh process."""
    launches.renew()
    for earlier in sequence:
        launches.judge(earlier, "confirm")
    return showed(launches.judge(order, "confirm"), failure_class)


def shortened(sequence: tuple[Order, ...], fails: Callable[[tuple[Order, ...]], bool]) -> tuple[Order, ...]:
    """Return a sequence without the cases that the failure does not need; ``fails`` may raise to end the search."""
    size = len(sequence) // 2
    while size:
        start = 0
        while start < len(sequence):
            shorter = sequence[:start] + sequence[start + size :]
            if shorter and fails(shorter):
                sequence = shorter
            else:
                start += size
        size //= 2
    return sequence
