"""Explain: why a case fails. Where the case itself leaves several reasons, larger ones of its kind are tried too."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.forensics.explanation import Explanation, Finding
from fuzz_attn.forensics.inquiry import MOST_FINDINGS, Inquiry
from fuzz_attn.forensics.lab import SECONDS
from fuzz_attn.forensics.siblings import (
    difference,
    siblings,
    with_more_heads,
    with_one_page,
    without_empty,
    without_limit,
)
from fuzz_attn.forensics.words import count, ranges
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.check import all_failures
from fuzz_attn.properties.experiment import Experiment

SHIFTED: Final = ("causal", "unwritten", "address")
"""Reasons that may follow from rows that are taken for other heads, which a case with one head cannot show."""


def explain(experiment: Experiment, relation: str | None = None) -> Explanation:
    """Return why the case of an experiment fails, as far as more launches tell it."""
    failures = [verdict for verdict in all_failures(experiment, relation) if not verdict.passed]
    if not failures:
        return Explanation((Finding("unknown", "the case passes, so there is nothing to explain"),))
    until = time.process_time() + SECONDS
    found = Inquiry(experiment, failures, until).explanation()
    if found.findings[0].vague or found.reason in SHIFTED:
        told = _of_heads(experiment, found, until)
        if told is not None:
            return told
    if found.findings[0].vague:
        return (
            _row_of_an_empty_sequence(experiment, found)
            or _hidden_by_no_window(experiment, found)
            or _of_siblings(experiment, found, until)
        )
    return _of_later_pages(experiment, found)


def _of_siblings(experiment: Experiment, found: Explanation, until: float) -> Explanation:
    """Return an explanation with the finding of a larger case in front, if there is one that says more."""
    launches = found.launches
    for case in siblings(experiment.case):
        told = _told(experiment, case, until)
        launches += told.launches if told is not None else 0
        weaker = told is not None and told.reason == found.reason == "denominator"
        if told is not None and not told.findings[0].vague and not weaker:
            return _joined(experiment.case, case, found, told)
    return msgspec.structs.replace(found, launches=launches)


def _of_heads(experiment: Experiment, found: Explanation, until: float) -> Explanation | None:
    """Return an explanation with the wrong head mapping of a case with more heads in front; None where it has none."""
    case = with_more_heads(experiment.case)
    told = _told(experiment, case, until) if case is not None else None
    if case is None or told is None or told.reason != "head mapping":
        return None
    return _joined(experiment.case, case, found, told)


def _hidden_by_no_window(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return that no window is taken for one, where the case passes with a window that hides nothing."""
    case = without_limit(experiment.case)
    missed = found.findings[0].reason == "segment"
    if case is None or not missed or _failures_of(experiment.with_target(case, experiment.target)) != []:
        return None
    words = f"{found.words}; right with a window of {case.window}, which hides nothing: no window is taken for one"
    findings = (Finding("window", words), *found.findings[1:])
    return msgspec.structs.replace(found, findings=findings)


def _of_later_pages(experiment: Experiment, found: Explanation) -> Explanation:
    """Return that addresses of later pages are wrong, where the case passes with as many keys as one page has."""
    told = found.reason == "address" and not experiment.first.observations
    case = with_one_page(experiment.case) if told else None
    if case is None or _failures_of(experiment.with_target(case, experiment.target)) != []:
        return found
    size = case.pages.block_size
    words = (
        f"{found.words}; right with one page of {count(size, 'key')}, so that later pages are read at wrong addresses"
    )
    findings = (Finding("page", words), *found.findings[1:])
    return msgspec.structs.replace(found, findings=findings)


def _row_of_an_empty_sequence(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return that a row is taken for a sequence without query tokens, where the case passes without such sequences."""
    case = without_empty(experiment.case)
    if case is None or _failures_of(experiment.with_target(case, experiment.target)) != []:
        return None
    empty = [index for index, sequence in enumerate(experiment.case.sequences) if not sequence.query_len]
    which = f"sequence{'s' * (len(empty) > 1)} {ranges(empty)}"
    words = (
        f"{found.words}; right without {which}, which has no query tokens: a row of another sequence is taken for it"
    )
    findings = (Finding("foreign sequence", words), *found.findings[1:])
    return msgspec.structs.replace(found, findings=findings)


def _told(experiment: Experiment, case: AttentionCase, until: float) -> Explanation | None:
    """Return the explanation of another case; None where that passes, cannot be launched, or the time is up."""
    if time.process_time() > until:
        return None
    other = experiment.with_target(case, experiment.target)
    failures = _failures_of(other)
    return Inquiry(other, failures, until).explanation() if failures else None


def _joined(case: AttentionCase, other: AttentionCase, found: Explanation, told: Explanation) -> Explanation:
    """Return the findings of a larger case, then those of the case itself; a guess at addresses ends with a reason."""
    own = [finding for finding in found.findings if not (finding.vague and finding.reason == "address")]
    findings = (*told.findings, *(found.findings if told.reason == "address" else own))[:MOST_FINDINGS]
    return Explanation(findings, told.heatmap, found.launches + told.launches, difference(case, other))


def _failures_of(experiment: Experiment) -> list[Verdict] | None:
    """Return the failures of another case; None where it cannot be launched."""
    try:
        return [verdict for verdict in all_failures(experiment) if not verdict.passed]
    except FuzzAttnError:
        return None
