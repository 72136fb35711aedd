"""Log-sums: what is wrong with a log-sum-exp whose attention output is right, and with rows that see no key."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from fuzz_attn.forensics.explanation import Finding, count, rows_of_case
from fuzz_attn.forensics.lab import Array, Lab
from fuzz_attn.oracle.logits import logits_of

UNSHIFTED: Final = "sink: it is not shifted by the maximum"
"""The cause of a wrong weight of the sink, in outputs and log-sum-exps."""
ONLY_LARGEST = "only the largest logit"
WITHOUT_SINK = "without the sink"
_UNSHIFTED_SUM: Final = "that with a sink which is not shifted by the maximum"
LARGEST_EXPONENT: Final = math.log(float(np.finfo(np.float32).max))
"""Above it, an exponential is infinite in float32."""
LITTLE_LEFT: Final = 0.01
"""Share of the errors that an explanation may leave."""
MANY: Final = 4
"""So many different wrong log-sum-exps do not agree with another formula by chance."""


def keyless_findings(lab: Lab) -> Iterator[Finding]:
    """Yield that rows which see no key are not 0, if only these are wrong."""
    sequences = lab.case.sequences
    wrong = {row.sequence for row in rows_of_case(lab.case) if lab.first.wrong[row.token, row.head].any()}
    if wrong and all(sequences[each].has_no_key for each in wrong):
        finite = bool(np.isfinite(lab.first.actual[lab.first.wrong]).all())
        found = "not 0" if finite else "NaN or infinite"
        words = f"sequence {min(wrong)} has no key, so its output is 0, and it is {found}: no denominator may be used"
        yield Finding("denominator", words)


def log_sum_findings(lab: Lab) -> Iterator[Finding]:
    """Yield what a wrong log-sum-exp is instead."""
    tensors, expected = lab.experiment.first.tensors, lab.experiment.reference.get("lse")
    if expected is None or tensors.lse is None:
        return
    actual, value = (each.cpu().double().numpy() for each in (tensors.outputs["lse"].elements, expected.value))
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(actual - value) <= expected.bound.cpu().numpy()) & (actual != value)
    if not wrong.any():
        return
    empty = wrong & _sees_nothing(lab)
    if (empty == wrong).all():
        words = f"{actual[wrong][0]:.4g} in {count(int(wrong.sum()), 'row')} without keys"
        yield Finding("denominator", f"the log-sum-exp is {words}, where it should be {value[wrong][0]:.4g}")
        return
    own = {"in base 2 and not in base e": "e", "in base e and not in base 2": "2"}
    others = {
        words: other
        for words, other in _others(lab, value).items()
        if own.get(words, tensors.lse.base) == tensors.lse.base
    }
    bound = np.where(empty, np.inf, expected.bound.cpu().numpy())
    explained = agreeing(actual, value, bound, wrong, others)
    words = explained[0] if explained else ""
    if not words:  # where a row sees one key, its output does not tell its score
        yield Finding(
            "denominator", f"the log-sum-exp is wrong in {count(int(wrong.sum()), 'row')}, and the output right", True
        )
        return
    if words == _UNSHIFTED_SUM:
        yield Finding("sink", f"the log-sum-exp is {words}", cause=UNSHIFTED)
        return
    # With one key its logit is the largest one, so that the sink may be left out, or all but the largest logit.
    several = words == WITHOUT_SINK and ONLY_LARGEST in explained
    yield Finding("denominator", f"the log-sum-exp is {words}{f', or {ONLY_LARGEST}' * several}", several)


def agreeing(actual: Array, value: Array, bound: Array, wrong: Array, others: dict[str, Array]) -> list[str]:
    """Return the words of formulas that give the ``wrong`` numbers, of the ``others`` that they are in words.

    A few rows may agree by chance. So where a formula is wrong by more than the ``bound`` of rows that are right, only
    many different wrong numbers say that they are computed so.
    """
    few = len(np.unique(value[wrong])) < MANY
    with np.errstate(invalid="ignore"):
        differ = {words: ~wrong & (np.abs(other - value) > bound) for words, other in others.items()}
    return [
        words
        for words, other in others.items()
        if _is(actual[wrong], other[wrong], value[wrong]) and not (few and differ[words].any())
    ]


def _others(lab: Lab, value: Array) -> dict[str, Array]:
    """Return by their words the log-sum-exps that other formulas give where ``value`` is right."""
    largest = _largest(lab)
    with np.errstate(invalid="ignore"):  # rows without keys, whose numbers are infinite
        return {
            **_with_other_sinks(lab, value, largest),
            "in base 2 and not in base e": value / math.log(2.0),
            "in base e and not in base 2": value * math.log(2.0),
            "without the largest logit, which was subtracted": value - largest,
            ONLY_LARGEST: largest,
            "the largest logit and a logarithm in base 2": largest + (value - largest) / math.log(2.0),
        }


def _with_other_sinks(lab: Lab, value: Array, largest: Array) -> dict[str, Array]:
    """Return the log-sum-exps that other sinks would give, or none; nothing where none is counted."""
    tensors = lab.experiment.first.tensors
    if tensors.sinks is None or tensors.lse is None or not tensors.lse.with_sinks:
        return {}
    unit = 1.0 if tensors.lse.base == "e" else math.log(2.0)
    sinks = tensors.sinks.double().cpu().numpy() / unit
    own = np.broadcast_to(sinks if tensors.lse.order == "tokens" else sinks[:, None], value.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        keys = np.log(np.expm1((value - own) * unit)) / unit + own  # of the keys alone
        others = {f"that with the sink of head {head}": np.full_like(own, sink) for head, sink in enumerate(sinks[:8])}
        others[_UNSHIFTED_SUM] = own + largest
        found = {words: np.logaddexp(keys * unit, sink * unit) / unit for words, sink in others.items()}
    found[_UNSHIFTED_SUM] = np.where(own * unit > LARGEST_EXPONENT, np.inf, found[_UNSHIFTED_SUM])
    return {WITHOUT_SINK: keys, **found}


def _sees_nothing(lab: Lab) -> Array:
    """Return bool, which rows see no key by their position, in a shape that broadcasts with the log-sum-exp."""
    tensors, nothing = lab.experiment.first.tensors, []
    for query_len, context_len in zip(tensors.query_lens, tensors.context_lens, strict=True):
        seeing = tensors.visibility.rows_with_keys(query_len, context_len)
        nothing += [row not in seeing for row in range(query_len)]
    found = np.array(nothing, np.bool_)
    return found[:, None] if tensors.lse is None or tensors.lse.order == "tokens" else found[None]


def _is(actual: Array, other: Array, right: Array) -> bool:
    """Return whether numbers are others, apart from a small share of their errors; an infinite one is only itself."""
    with np.errstate(invalid="ignore"):
        left, error = np.abs(actual - other), np.abs(actual - right)
    return bool(((actual == other) | (np.isfinite(actual) & (left <= LITTLE_LEFT * error))).all())


def _largest(lab: Lab) -> Array:
    """Return the largest logit of each row, of the shape of the log-sum-exp and in its base; 0 for other rows."""
    tensors, model = lab.experiment.first.tensors, lab.experiment.target.rounding_model
    assert tensors.lse is not None
    shape = sum(tensors.query_lens), tensors.num_kv_heads, tensors.query.shape[1] // tensors.num_kv_heads
    found = torch.zeros(shape, dtype=torch.float64, device=tensors.query.device)
    for block in lab.experiment.blocks:
        found[block.tokens] = logits_of(block, tensors, model).top[..., 0].transpose(1, 2)
    rows = found.flatten(1).cpu().numpy() / (1.0 if tensors.lse.base == "e" else math.log(2.0))
    return rows if tensors.lse.order == "tokens" else rows.T
