"""Closer look: more launches at a failure that was found, to say more about its cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.forensics.explanation import Explanation
from fuzz_attn.oracle.verdict import Verdict, Weights

SMALL: Final = 2.0
"""An error below this many bounds that a rounding would explain is more likely that than a bug."""


def explained(judge: Callable[[Order], Answer], order: Order, verdict: Verdict) -> Verdict:
    """Return a failure that also names the poison that reaches the output, or the rounding that would explain it.

    This takes up to twenty launches. A launch that ends otherwise, for example with a crash, explains nothing.
    """
    if verdict.passed or order.in_fresh_process:
        return verdict
    again = judge(msgspec.structs.replace(order, explain=True)).verdict
    return again if again.what == verdict.what else verdict


def in_words(judge: Callable[[Order], Answer], order: Order, verdict: Verdict) -> Verdict:
    """Return a failure with what the kernel does wrong in a sentence, and weights that show it, if they can be told.

    Small errors that one rounding would explain are said to be that, perhaps.
    """
    rounding = verdict.rounding
    if rounding and verdict.ratio is not None and verdict.ratio < SMALL:
        words = f"undeclared rounding? It passes with {rounding}, and is {verdict.ratio:.3g} bounds off without"
        return msgspec.structs.replace(verdict, explanation=words, cause=f"undeclared {rounding}")
    explanation = judge(msgspec.structs.replace(order, forensics=True, site=verdict.site)).explanation
    if explanation is None:
        return verdict
    verdict = msgspec.structs.replace(verdict, weights=weights_of(explanation))
    if explanation.reason == "unknown":
        return verdict
    return msgspec.structs.replace(verdict, explanation=explanation.sentence, cause=explanation.cause)


def weights_of(explanation: Explanation) -> Weights | None:
    """Return the weights of an explanation as a file holds them, with three digits."""
    shown = explanation.heatmap
    if shown is None:
        return None
    used, right = (tuple(map(_as_text, rows)) for rows in (shown.actual, shown.expected))
    return Weights(
        shown.sequence, shown.head, shown.queries, shown.first_key, used, right, shown.visible, explanation.longer
    )


def _as_text(weights: Iterable[float]) -> str:
    return " ".join("?" if weight < 0 else f"{weight:.3g}" for weight in weights)
