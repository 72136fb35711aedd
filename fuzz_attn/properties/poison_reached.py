"""Which poison reaches the output: an explanation of a failure, found with a few more launches."""

from __future__ import annotations

import dataclasses
from typing import Final

import msgspec

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.description import POISONED, poison_in_words
from fuzz_attn.case.recipes import PoisonRecipe
from fuzz_attn.oracle.verdict import Kind, Verdict
from fuzz_attn.properties.comparisons import SameBits, compared
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.second_cases import with_other_poison

_OF_THE_OUTPUT: Final[tuple[Kind, ...]] = ("mismatch", "nan", "inf", "unwritten", "poison_dependent")
"""An fp8 NaN counts as unwritten: it has the same bits."""


def with_poison_named(verdict: Verdict, experiment: Experiment) -> Verdict:
    """Return a failure whose message also names the poison that reaches the output, if some does."""
    if verdict.kind not in _OF_THE_OUTPUT or experiment.first.error:
        return verdict
    reached = tuple(part for part in POISONED if _depends_on(part, experiment))
    if not reached or not _repeats(experiment):
        return verdict
    words = ", ".join(poison_in_words(experiment.case.poison, part) for part in reached)
    message = f"{verdict.message}; poison reaches the output: {words}"
    return msgspec.structs.replace(verdict, message=message, poison=reached)


def with_other(case: AttentionCase, part: str) -> AttentionCase:
    """Return the case with the poison of one part replaced by another."""
    other: PoisonRecipe = msgspec.structs.replace(case.poison, **{part: getattr(with_other_poison(case).poison, part)})
    return replace(case, poison=other)


def _depends_on(part: str, experiment: Experiment) -> bool:
    """Return whether the output has other bits with other poison in one part, or with harmless zeros."""
    harmless: PoisonRecipe = msgspec.structs.replace(experiment.case.poison, **{part: "zero"})
    others = with_other(experiment.case, part), replace(experiment.case, poison=harmless)
    return not all(_same(experiment, other) for other in others)


def _repeats(experiment: Experiment) -> bool:
    """Return whether the same case gives the same bits again; otherwise other poison proves nothing."""
    return _same(experiment, experiment.case)


def _same(experiment: Experiment, case: AttentionCase) -> bool:
    launch = dataclasses.replace(experiment.launch(case), observations=())
    return compared(SameBits(launch, "", "nondeterministic"), experiment, "").passed
