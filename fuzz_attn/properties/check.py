"""The check of one case: every launch property, and one relation where it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties import absent, bounded, catalogue, exact, launch, value_range
from fuzz_attn.properties.experiment import Experiment

Property = Callable[[Experiment], Verdict]

LAUNCH: Final[dict[str, Property]] = {
    "sanitizers": launch.sanitizers,
    "inputs_unchanged": launch.inputs_unchanged,
    "oracle": launch.oracle,
    "value_range": value_range.value_range,
    "nothing_else_written": launch.nothing_else_written,
}
"""Answered from the first launch, in this order: the oracle reads the inputs as the launch left them."""

RELATIONS: Final[dict[str, Property]] = {
    "determinism": exact.determinism,
    "poison_independence": exact.poison_independence,
    "page_permutation": exact.page_permutation,
    "other_strides": exact.other_strides,
    "empty_sequences": exact.empty_sequences,
    "batch_order": bounded.batch_order,
    "alone_in_batch": bounded.alone_in_batch,
    "segments": bounded.segments,
    "head_permutation": bounded.head_permutation,
    "key_shift": bounded.key_shift,
    "value_shift": bounded.value_shift,
    "value_scale": bounded.value_scale,
    "narrower_window": bounded.narrower_window,
    "other_family": bounded.other_family,
    "wide_window": absent.wide_window,
    "zero_slopes": absent.zero_slopes,
    "zero_bias": absent.zero_bias,
    "absent_sinks": absent.absent_sinks,
    "unit_scales": absent.unit_scales,
}
"""Each needs another launch; the catalogue says for which cases it holds."""


def check(experiment: Experiment, relation: str | None = None) -> Verdict:
    """Return the first verdict that is wrong, of the launch properties and one relation; else the oracle's.

    An exception of the target answers for all of them. Raises :class:`FuzzAttnError` for a relation that is unknown or
    does not hold for the case.
    """
    if relation:
        _require_holding(relation, experiment.case)
    if experiment.first.error:
        return Verdict("oracle", "exception", f"the target raised {experiment.first.error}")
    asked = LAUNCH | {relation: RELATIONS[relation]} if relation else LAUNCH
    verdicts = {}
    for name, property_ in asked.items():
        verdicts[name] = verdict = property_(experiment)
        if not verdict.passed:
            return verdict
    return verdicts["oracle"]


def _require_holding(relation: str, case: AttentionCase) -> None:
    """Refuse a relation that has no meaning for a case, whatever the target."""
    if relation not in RELATIONS:
        raise FuzzAttnError(f"relation={relation!r} must be one of: {', '.join(RELATIONS)}")
    everything = Domain(family=case.family, paths=("auto", "2d", "3d"))
    if not catalogue.RELATIONS[relation].applies(case, everything):
        raise FuzzAttnError(f"relation={relation!r} does not hold for the case")
