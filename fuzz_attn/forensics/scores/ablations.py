"""Ablations: whether the weights become right once one feature of the case is taken away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from fuzz_attn.errors import ProbeError
from fuzz_attn.forensics.cells import Array
from fuzz_attn.forensics.explanation import Finding, Reason
from fuzz_attn.forensics.lab import Lab, beyond, distinct, without_scores, without_sinks
from fuzz_attn.forensics.recovery import Recovered, recovered
from fuzz_attn.forensics.scores.terms import Comparison
from fuzz_attn.forensics.words import Row, rows_of_case
from fuzz_attn.inputs.tensors import AttentionTensors

Change: TypeAlias = Callable[[AttentionTensors], AttentionTensors]


def ablation_findings(lab: Lab, found: Recovered, seen: Comparison) -> Iterator[Finding]:
    """Yield the feature without which the weights are right."""
    wrong = found.wrong
    row = next((row for row in rows_of_case(lab.case) if wrong[row.token, row.head].any()), None)
    if row is None:
        return
    cells = _probed(wrong[row.token, row.head], found, lab)
    lost = not np.isfinite(found.actual[row.token, row.head]).any()
    for reason, words, change in _features(lab):
        try:
            without = recovered(lab, change(lab.cleared()), cells)
        except ProbeError:
            continue
        if without is not None and not (without.far if found.far.any() else without.wrong).any():
            what = f"{row.words}, head {row.head}: its weights are {'NaN' if lost else 'wrong'}, and right {words}"
            if reason == "soft cap":
                what += f" (its largest score is {_largest_score(seen, row) / lab.case.softcap:.4g} times that)"
            if reason == "scale" and not beyond(found.actual, without.expected, without.bound)[..., cells].any():
                what = f"{row.words}, head {row.head}: its weights are those {words}"
            yield Finding(reason, what)
            return


def _largest_score(seen: Comparison, row: Row) -> float:
    """Return the largest size of a score of a row before the soft cap."""
    place = (row.token, row.head)
    return float(np.abs(seen.terms.score[place])[seen.terms.visible[place]].max(initial=0.0))


def softcap_findings(lab: Lab, found: list[Finding]) -> Iterator[Finding]:
    """Yield that rows attend wrong keys because of the soft cap only, if so."""
    if lab.case.softcap and found:
        tensors = dataclasses.replace(without_scores(lab.cleared()), softcap=0.0)
        without = recovered(lab, tensors)
        if without is not None and not without.far.any():
            words = (
                f"{found[0].words}; right without the soft cap of {lab.case.softcap:g}: it is applied after the mask"
            )
            yield Finding("soft cap", words)


def _probed(wrong: Array, found: Recovered, lab: Lab) -> Array:
    """Return as many cells as one launch probes, wrong ones first."""
    order = np.argsort(~wrong, kind="stable")
    return np.sort(order[: lab.case.heads.head_size])


def _features(lab: Lab) -> Iterator[tuple[Reason, str, Change]]:
    case = lab.case
    if case.sinks is not None:
        yield "sink", "without the sinks", without_sinks
    if case.alibi is not None:
        slopes = lab.experiment.first.tensors.alibi_slopes
        if slopes is not None and bool((slopes.double() < 0).any()):
            yield "slope", "with the sizes of its slopes, of which some are negative", _positive_slopes
        yield "slope", "without the slopes", _without_slopes
    if case.qq_bias is not None:
        yield "bias", "without the values of the query-query bias", _without_bias
    if case.softcap:
        yield (
            "soft cap",
            f"without the soft cap of {case.softcap:g}",
            lambda tensors: dataclasses.replace(tensors, softcap=0.0),
        )
    if case.scales.k != 1.0:
        yield "scale", f"without k_scale ({case.scales.k:g})", lambda tensors: _filled(tensors, "k_scale")
    if case.scales.q != 1.0:
        yield "scale", f"without q_scale ({case.scales.q:g})", lambda tensors: _filled(tensors, "q_scale")
    default = case.heads.head_size**-0.5
    if case.softmax_scale != default:
        yield (
            "scale",
            f"with a softmax_scale of {default:g}, the default, in place of {case.softmax_scale:g}",
            lambda t: dataclasses.replace(t, softmax_scale=default),
        )


def _positive_slopes(tensors: AttentionTensors) -> AttentionTensors:
    if tensors.alibi_slopes is not None:
        tensors.alibi_slopes.abs_()
    return tensors


def _without_slopes(tensors: AttentionTensors) -> AttentionTensors:
    if tensors.alibi_slopes is not None:
        tensors.alibi_slopes.zero_()
    return tensors


def _without_bias(tensors: AttentionTensors) -> AttentionTensors:
    if tensors.qq_bias is not None:
        own = distinct(tensors.qq_bias)
        own.masked_fill_(own.isfinite(), 0.0)
    return tensors


def _filled(tensors: AttentionTensors, name: str) -> AttentionTensors:
    scale = getattr(tensors, name)
    if scale is not None:
        scale.fill_(1.0)
    return tensors
