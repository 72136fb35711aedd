"""The same way: whether a failure of one backend is one of another backend, which has other eyes.

A GPU shows what comes out: a wrong output, a write outside, a crash, a hang. It names no line. The simulator runs the
same kernel with sanitizers, so that one bug may have another class there. These are the same failure:

- Both have the same class (:func:`fuzz_attn.engine.failures.triage.class_of`): a wrong output on both, the same
  exception at the same line of the target.
- A sanitizer names a line in the simulator, and the GPU shows anything but an exception. An access outside of a tensor,
  a race, unwritten memory, a false hint and the others leave open what a GPU does: it may compute something else,
  write elsewhere, crash, or not end. Guard bands of a GPU find some of it without a line.
- A kernel's own assertion, or a grid that is too large, is an exception of the simulator and a crash or an exception on
  a GPU.

What is left is not the same: for example a wrong output on a GPU where the simulator raises. A wrong output is not told
from another wrong output of the same case, here as in triage. So a case with two bugs, one of logic and one that only
the GPU has, counts as the bug of logic at first. The search goes on with cases that do not have its trigger.
"""

from __future__ import annotations

from typing import Final

from fuzz_attn.engine.failures.triage import alike, class_of, failures_of, is_finding, traits_of_both
from fuzz_attn.engine.messages import Answer, Order
from fuzz_attn.oracle.verdict import Verdict

EXCEPTION: Final = "exception"
SANITIZERS: Final = "sanitizers"


def is_same_way(finding: Verdict, explaining: Verdict, order: Order) -> bool:
    """Return whether a failure of the finding backend is one of the explaining backend on the same order."""
    if alike(class_of(finding), class_of(explaining), traits_of_both(order)):
        return True
    if is_finding(explaining):
        return finding.kind != EXCEPTION
    if explaining.property_name == SANITIZERS and explaining.kind == EXCEPTION:
        return finding.kind in (EXCEPTION, "crash")
    return False


def shown_in_same_way(finding: Verdict, answer: Answer, order: Order) -> tuple[Verdict, ...]:
    """Return the failures in an answer of the explaining backend that are the finding backend's, first with a line."""
    same = [verdict for verdict in failures_of(answer) if is_same_way(finding, verdict, order)]
    return tuple(sorted(same, key=lambda verdict: not is_finding(verdict)))
