"""Inquiry: the questions about one failing case, in order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from fuzz_attn.backends.backend import Observation
from fuzz_attn.errors import ProbeError
from fuzz_attn.forensics.accesses import DEAD_ENTRY, accessed, element_words, reason_of_access
from fuzz_attn.forensics.addresses import (
    column_findings,
    dimension_findings,
    key_findings,
    latent_findings,
    query_findings,
)
from fuzz_attn.forensics.attended_keys import (
    DEEPEST,
    HIDDEN_BY_ITS_BIT,
    Recovered,
    heatmap_of,
    long_findings,
    mask_findings,
    readings,
    recovered,
)
from fuzz_attn.forensics.divisions import keys_are_right, undivided_findings
from fuzz_attn.forensics.explanation import Explanation, Finding, Heatmap, Reason
from fuzz_attn.forensics.lab import Array, Lab, by_row, without_scores
from fuzz_attn.forensics.leaks import leak_findings
from fuzz_attn.forensics.log_sums import keyless_findings, log_sum_findings
from fuzz_attn.forensics.mask_bits import mask_row_findings, of_parts
from fuzz_attn.forensics.score_mistakes import score_findings, softcap_order_findings
from fuzz_attn.forensics.score_terms import Comparison, ablation_findings, comparison_of, softcap_findings
from fuzz_attn.forensics.softmaxes import (
    attended_findings,
    level_findings,
    lost_findings,
    nan_findings,
    part_findings,
    rescale_findings,
    sink_findings,
)
from fuzz_attn.forensics.wrong_outputs import (
    empty_findings,
    output_findings,
    outside_findings,
    type_findings,
    unwritten_findings,
)
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.verdict import OUT_OF_BOUNDS_STORE, Kind, Verdict
from fuzz_attn.properties.experiment import Experiment

MOST_FINDINGS: Final = 4
NO_ROUNDING: Final = 1000.0
"""An error of more than this many error bounds is not taken for rounding."""

CAUSES: Final[frozenset[Kind]] = frozenset(
    (
        *("uninitialised", "race", "overflow"),
        *("conflicting_store", "unordered_load", "false_hint", "undefined_integer"),
    )
)
"""What sanitizers find that is a cause and no consequence."""
ENDS: Final[frozenset[Kind]] = frozenset(("exception", "crash", "timeout"))


_OF_ACCESSES: Final[frozenset[Reason]] = frozenset(("page", "segment", "foreign sequence", "address", "unwritten"))
"""Reasons that follow from an access which a sanitizer reports in the same launch."""


def _caused_by(observed: list[Finding], finding: Finding) -> Finding:
    """Return a finding that has the cause of a sanitizer's finding of the same launch, where it may follow from it."""
    follows = observed and not finding.cause and finding.reason in _OF_ACCESSES
    return msgspec.structs.replace(finding, cause=observed[0].cause) if follows else finding


def _shared_words(observation: Observation, tensors: AttentionTensors) -> str:
    """Return what a race is; a kernel writes its outputs, and may read memory of its own too."""
    found = accessed(observation, tensors)
    written = found is not None and found[0] in tensors.outputs
    return f"two programs {'write one row' if written else 'use one element, which one of them writes'}: "


class Inquiry:
    """The questions about one failing case, in their order; a later one is asked where no earlier one has an answer."""

    def __init__(self, experiment: Experiment, failures: list[Verdict], until: float) -> None:
        self.lab = Lab(experiment, until)
        self.failures = failures
        self.kinds = {verdict.kind for verdict in failures}
        self._stopped = ""

    def explanation(self) -> Explanation:
        """Return the findings and the weights that show them."""
        findings = list(self._findings()) or [self._unknown()]
        uniform: Recovered | None = self.__dict__.get("uniform")
        right = uniform is not None and keys_are_right(uniform, self.lab.case)
        shown = tuple(findings[:MOST_FINDINGS])
        return Explanation(shown, self._heatmap(), self.lab.launches, keys_are_right=right)

    def _findings(self) -> Iterator[Finding]:
        if self.kinds & ENDS and self.lab.experiment.first.error:
            return
        observed = list(self._of_sanitizers())
        found = list(self._of_writes(observed))
        if self.kinds & CAUSES or self._stored_outside:
            found += observed
        try:
            if self._output_wrong and "uninitialised" not in self.kinds:  # else weights are those of an earlier launch
                weights = self._of_weights()
                deepest = bool(weights) and weights[0].reason in DEEPEST
                if observed and weights and not deepest and self._may_follow(weights[0]):
                    found = [msgspec.structs.replace(observed[0], vague=True), *found]
                found = [*weights, *found] if deepest else [*found, *weights]
                found = [_caused_by(observed, each) for each in dict.fromkeys(found)]
        except ProbeError as error:
            self._stopped = str(error)
        if not found and not self._output_wrong:
            found = list(log_sum_findings(self.lab))
            if found and found[0].vague:
                found = observed or self._behind_log_sums() or found
        yield from found or [*observed, *self._of_relation()]

    def _behind_log_sums(self) -> list[Finding]:
        """Return what is wrong with weights that other values show, where those of the case hide it."""
        with contextlib.suppress(ProbeError):
            found = (
                [] if self.uniform is None else mask_findings(self.uniform, self.lab.case, by_row(self.lab.first.wrong))
            )
            if not found and self.natural is not None and self.natural.wrong.any():
                found = self._of_scores(self.natural)
            if not found and self.lab.experiment.first.tensors.cache_format.is_latent:
                found = list(latent_findings(self.lab))
            return found
        return []

    @cached_property
    def _output_wrong(self) -> bool:
        judged = any(verdict.property_name != "sanitizers" for verdict in self.failures)
        return judged and bool(self.lab.first.wrong.any())

    def _of_writes(self, observed: list[Finding]) -> Iterator[Finding]:
        """Yield elements that are never written, and others that must not be."""
        unwritten, outside = unwritten_findings(self.lab), []
        stored = bool(self._stored_outside & self.lab.experiment.first.tensors.outputs.keys())
        if "written_outside" in self.kinds or stored:
            outside = outside_findings(self.lab)
        if unwritten and outside and outside[0].reason == "unwritten":
            words = f"{unwritten[0].words}; {outside[0].words}: the rows of another sequence are taken"
            yield Finding("foreign sequence", words)
            return
        if unwritten and (outside or stored):
            words = f"{unwritten[0].words}, and memory outside of the output's rows is: a wrong stride or offset"
            yield Finding("address", words)
            return
        yield from (*unwritten, *outside)

    def _of_weights(self) -> list[Finding]:
        """Return what is wrong with the keys that rows attend, with their scores, or with their values."""
        found = list(keyless_findings(self.lab))
        if found:
            return found
        wrong_rows = by_row(self.lab.first.wrong)
        found = empty_findings(self.lab) or list(type_findings(self.lab)) or list(column_findings(self.lab))
        if not found and self.uniform is not None:
            found = self._of_keys(self.uniform, wrong_rows) or list(nan_findings(self.lab, self.uniform))
        if found and all(each.vague and each.reason == "denominator" for each in found) and self.natural is not None:
            told = rescale_findings(comparison_of(self.lab, self.natural))
            found = [each for each in told if not each.vague] or found
        if found and found[0].reason == "bias" and self.natural is not None:
            seen = comparison_of(self.lab, self.natural)
            found = [*(each for each in score_findings(seen) if each.reason == "bias"), *found]
        if not found and self.uniform is None:
            found = long_findings(self.lab)
        if not found and self.natural is not None and self.natural.wrong.any():
            found = self._of_scores(self.natural)
        if not np.isfinite(self.lab.first.actual[wrong_rows]).all():
            found = self._with_leaks(found)
        if not found and self.lab.experiment.first.tensors.cache_format.is_latent:
            found = list(latent_findings(self.lab))
        if not found and not (self.natural is not None and self.natural.far.any()):
            found = output_findings(self.lab) or list(self._arithmetic())
        return found or list(level_findings(self.lab))

    def _of_keys(self, uniform: Recovered, wrong_rows: Array) -> list[Finding]:
        """Return what is wrong with the keys that rows attend; it stays said if the time ends before a feature is."""
        case = self.lab.case
        found = undivided_findings(uniform, case) or mask_findings(uniform, case, wrong_rows)
        with contextlib.suppress(ProbeError):
            found = list(softcap_findings(self.lab, found)) or found
        told = [of_parts(uniform, case, each) if each.words.endswith(HIDDEN_BY_ITS_BIT) else each for each in found]
        return [*(mask_row_findings(uniform, case) if found else []), *told]

    def _with_leaks(self, found: list[Finding]) -> list[Finding]:
        """Return findings and where NaN and infinity come from, which the time may be too short to tell."""
        try:
            return [*found, *leak_findings(self.lab)]
        except ProbeError:
            if not found:
                raise
            return found

    def _of_scores(self, natural: Recovered) -> list[Finding]:
        """Return the first answer to the questions about scores; those about addresses need large errors."""
        seen, lab = comparison_of(self.lab, natural), self.lab
        small: list[Callable[[], Iterable[Finding]]] = [
            lambda: attended_findings(lab, natural, seen),
            lambda: sink_findings(lab),
            lambda: rescale_findings(seen),
            lambda: softcap_order_findings(lab, seen),
            lambda: score_findings(seen),
            lambda: self._of_parts(seen),
        ]
        large: list[Callable[[], Iterable[Finding]]] = [
            lambda: key_findings(lab),
            lambda: query_findings(lab),
            lambda: ablation_findings(lab, natural, seen),
            lambda: lost_findings(lab, seen, natural),
            lambda: dimension_findings(lab),
        ]
        for question in (*small, *(large if natural.far.any() else [lambda: ablation_findings(lab, natural, seen)])):
            found = list(question())
            if found:
                return found[:1]
        return []

    def _of_parts(self, seen: Comparison) -> list[Finding]:
        """Return keys that weigh too much together; a wrong sum of all weights may follow from how keys are masked."""
        found = list(part_findings(self.lab, seen))
        if found and found[0].reason == "denominator" and self.lab.case.sinks is None:
            found = [each for each in level_findings(self.lab) if not each.vague] + found
        return found

    def _of_sanitizers(self) -> Iterator[Finding]:
        """Yield the first of what sanitizers found, or an overflow, from which wrong accesses follow."""
        first, case = self.lab.experiment.first, self.lab.case
        for observation in sorted(first.observations, key=lambda each: each.kind != "overflow")[:1]:
            right = "" if self._output_wrong else "the output is right, and "
            element = element_words(observation, first.tensors, case)
            shared = _shared_words(observation, first.tensors) if observation.kind == "race" else ""
            words = f"{shared}{right}{observation.message}" + (f": {element}" if element else "")
            place = f"{observation.kind} at {observation.site}" if observation.site else ""
            reason = reason_of_access(observation, first.tensors, case)
            yield Finding(reason, words, vague=element.endswith(DEAD_ENTRY), cause=place)

    def _may_follow(self, finding: Finding) -> bool:
        """Return whether what is wrong with the weights may only follow from an access that a sanitizer reports.

        So it is with a vague guess, and where rows seem to see fewer keys: these may be read outside of a tensor.
        """
        if "the denominator adds" in finding.words:
            return True
        if finding.vague or finding.reason != "causal" or self.uniform is None:
            return finding.vague and finding.reason not in ("address", "page")
        wrong = [each for each in readings(self.uniform, self.lab.case) if not each.right]
        return not any(each.extra or each.twice for each in wrong)

    @cached_property
    def _stored_outside(self) -> set[str]:
        """The tensors behind whose ends the target stores, an empty name for one that it has made itself."""
        first = self.lab.experiment.first
        stores = [each for each in first.observations if each.message.startswith(OUT_OF_BOUNDS_STORE)]
        return {(accessed(store, first.tensors) or ("", 0))[0] for store in stores}

    def _of_relation(self) -> Iterator[Finding]:
        """Yield a difference between two launches, of which the first is right."""
        verdict = self.failures[0]
        if verdict.property_name == "other_strides":
            yield Finding("address", f"{verdict.message}: strides are assumed, and not taken from the arguments")
        elif verdict.property_name == "key_shift":
            with contextlib.suppress(ProbeError):
                yield from level_findings(self.lab)

    def _arithmetic(self) -> Iterator[Finding]:
        oracle = next((verdict for verdict in self.failures if verdict.property_name == "oracle"), None)
        if self.natural is None or self.natural.far.any() or oracle is None or not oracle.ratio or oracle.ratio <= 1:
            return
        yield Finding(
            "arithmetic",
            f"all weights are right to within a few percent; the errors are {oracle.ratio:.3g} times as large as a "
            "correct kernel's can be",
            vague=oracle.ratio > NO_ROUNDING,
        )

    @cached_property
    def uniform(self) -> Recovered | None:
        """The weights for equal scores."""
        return recovered(self.lab, without_scores(self.lab.cleared()))

    @cached_property
    def natural(self) -> Recovered | None:
        """The weights for the scores of the case; None where the values that show them would be parts of keys."""
        if self.lab.experiment.first.tensors.cache_format.is_latent:
            return None
        return recovered(self.lab, self.lab.cleared())

    def _heatmap(self) -> Heatmap | None:
        uniform, natural = (self.__dict__.get(name) for name in ("uniform", "natural"))
        if uniform is None:
            return None
        shown = natural if natural is not None and not uniform.far.any() else uniform
        return heatmap_of(shown, uniform, self.lab.case)

    def _unknown(self) -> Finding:
        verdict = self.failures[0]
        why = f" ({self._stopped})" if self._stopped else ""
        ends = bool(self.kinds & ENDS)
        return Finding("unknown", f"could not tell{why}; what was seen: {verdict.message}", vague=not ends)
