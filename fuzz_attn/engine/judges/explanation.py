"""Explanation: one more look at a failure that was found, to say more about its cause."""

from __future__ import annotations

from typing import Protocol

import msgspec

from fuzz_attn.engine.messages import Answer, Order
from fuzz_attn.oracle.verdict import Verdict


class Judges(Protocol):
    """Something that judges orders, such as an isolated worker."""

    def judge(self, order: Order, *, deadline: float | None = None) -> Answer:
        """Return the answer to an order."""


def explained(worker: Judges, order: Order, verdict: Verdict, *, deadline: float | None = None) -> Verdict:
    """Return a failure whose message also names the poison that reaches the output, if some does.

    This takes up to five launches. A launch that ends otherwise, for example with a crash, explains nothing.
    """
    if verdict.passed:
        return verdict
    again = worker.judge(msgspec.structs.replace(order, explain=True), deadline=deadline).verdict
    same = (again.property_name, again.kind) == (verdict.property_name, verdict.kind)
    return again if same else verdict
