"""Suspected calls: sequences that may show what a case showed in a used process, and does not show in a fresh one.

A target that keeps something between calls fails by the cases that ran before. Which ones and what of them counts is
what a sequence says as one case, so that the failure is confirmed, shrunk and named like any other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from fuzz_attn.engine.failures.confirmation import CHECKS, Launches, in_fresh_process, shows
from fuzz_attn.engine.failures.reduction import Share, allowed
from fuzz_attn.engine.failures.triage import HANG, KnownFailure, KnownFailures, class_of, failures_of
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.errors import CaseError, ShareSpentInterrupt
from fuzz_attn.operations.calls.call_case import calls_of, suspects
from fuzz_attn.operations.registry import AnyCase, AnyDomain, operation_of
from fuzz_attn.oracle.verdict import Verdict

EARLIER: Final = 3
"""So many cases of the same compile key that ran before are suspected."""
LEAST_SECONDS: Final = 12.0
"""At least so long suspected sequences of a target are tried that is seen to keep something, a dozen processes: what is
not found would be called flaky."""


def as_sequence(
    order: Order,
    failure_class: str,
    alone: Answer,
    launches: Launches,
    before: Sequence[Order],
    share: Share,
    domain: AnyDomain,
    *,
    keeps: bool,
) -> tuple[Order, Answer, Verdict] | None:
    """Return a sequence of calls that shows a failure in each fresh process, what it shows there, and the verdict.

    What is kept wrongly may show in another way in each sequence, so any failure counts that the case does not show
    ``alone``. The case and the cases ``before`` it suggest sequences; those outside of the ``domain`` are left out.
    Returns None if no sequence fails. The search takes longer where the target is seen to keep something (``keeps``).
    """
    other = {"crash", HANG, *map(class_of, failures_of(alone))} - {failure_class}
    if failure_class in ("crash", HANG):
        return None
    *earlier, last = (call.case for call in calls_of(order.case))
    if operation_of(last).is_mostly_virtual(last):
        return None
    if keeps:
        share = Share(max(share.until, time.monotonic() + LEAST_SECONDS), share.launches)
    with contextlib.suppress(ShareSpentInterrupt, CaseError):
        for sequence in suspects(operation_of(last), last, [*reversed(earlier), *islice(_like(last, before), EARLIER)]):
            suspected = Order(sequence)
            if not allowed(suspected, domain):  # one token less may leave a context, which a target need not promise
                continue
            share.spend()
            answer = in_fresh_process(suspected, launches)
            for verdict in failures_of(answer):
                if class_of(verdict) not in other and _recurs(suspected, class_of(verdict), launches):
                    return suspected, answer, verdict
    return None


def _recurs(order: Order, failure_class: str, launches: Launches) -> bool:
    """Return whether a failure that was seen once recurs in each other check: of many sequences one fails by chance."""
    return all(shows(in_fresh_process(order, launches), failure_class) for _ in range(CHECKS - 1))


def _like(case: AnyCase, before: Sequence[Order]) -> Iterator[AnyCase]:
    """Yield the cases of the same compile key that ran before a case, the last one first."""
    for order in reversed(before):
        for call in reversed(calls_of(order.case)):
            alike = call.case.compile_key == case.compile_key and not call.raises
            if alike and not operation_of(call.case).is_mostly_virtual(call.case):
                yield call.case


def is_of_second_launch(order: Order, verdict: Verdict) -> bool:
    """Return whether a failure shows in another launch of its case, which a target may answer from what it keeps."""
    return verdict.property_name in (order.relation, "few_values")


def needing_earlier_call(order: Order, answer: Answer, known: KnownFailures) -> KnownFailure | None:
    """Return the known failure by earlier calls that an answer may show, whose process has judged others.

    None where it may not: it is of a sequence of calls, or shows nothing but other known failures.
    """
    kept, failures = known.needing_earlier_call, failures_of(answer)
    if kept is None or order.in_fresh_process or HANG in map(class_of, failures):
        return None
    return None if all(known.matching(order, verdict) is not None for verdict in failures) else kept
