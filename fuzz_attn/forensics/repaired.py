"""What a repair says beside the findings: a change that makes a kernel right leads, joins them, or is chance."""

from __future__ import annotations

from typing import Final

import msgspec

from fuzz_attn.forensics.candidates import UNLIKE, UNLIKELY, AtPlace, Candidate, OfArguments, OfConstant, OfGrid
from fuzz_attn.forensics.explanation import Explanation, Finding, Repair
from fuzz_attn.forensics.inquiry import MOST_FINDINGS
from fuzz_attn.forensics.near_cases import Kind
from fuzz_attn.forensics.repair import LIKELIEST, OF_NUMBERS, PLACES, RepairSearch, names_in, text_of
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.simulator.kernel_changes import MOVED

MANY_FAILED: Final = 10
"""Launches that were wrong and that a likely change makes right, for it to be shown though few were right."""
LIKELY: Final = 2.0
"""The rank below which it is shown then."""
ODD: Final = 5.0
"""The rank of one that divides or limits an integer by another one that has nothing to do with it."""


def with_repair(found: Explanation, experiment: Experiment, relation: str | None, kind: Kind) -> Explanation:
    """Return an explanation with a change that mends the kernel, if there is one.

    It leads where the findings are vague, and where it shows that the first of them cannot be true.
    """
    first = found.findings[0]
    if experiment.first.error or first.in_host:
        return found
    search = RepairSearch(experiment, relation, kind, found)
    repair = search.repair()
    if repair is None:
        return msgspec.structs.replace(found, launches=found.launches + search.launches)
    avoids_by_a_size = repair.avoids and isinstance(search.found[0], OfConstant)
    if avoids_by_a_size or is_chance(repair, search.found[0], first):
        return msgspec.structs.replace(found, launches=found.launches + search.launches)
    if repair.avoids:
        return msgspec.structs.replace(found, repair=repair, launches=found.launches + search.launches)
    findings = found.findings
    if isinstance(search.found[0], OfGrid):
        kept = findings if search.found[0].fewer else findings[1:]
        findings = (_of_grid(search.found[0], repair, first), *kept)[:MOST_FINDINGS]
        return msgspec.structs.replace(
            found, findings=findings, repair=repair, launches=found.launches + search.launches
        )
    told = Finding("operation", f"{repair.place}: {repair.change}", cause=f"operation: {repair.place}: {repair.change}")
    kept = tuple(each for each in findings if not contradicts(repair, search.found[0], each))
    if first.reason in _NO_CAUSES or first not in kept:
        findings = (told, *(each for each in kept if each.reason not in _NO_CAUSES))
    elif first.vague or _leads(repair, search.found[0], findings):
        findings = (told, *findings)
    findings = findings[:MOST_FINDINGS]
    return msgspec.structs.replace(found, findings=findings, repair=repair, launches=found.launches + search.launches)


def _leads(repair: Repair, candidate: Candidate, findings: tuple[Finding, ...]) -> bool:
    """Return whether a change says more than what is seen.

    That is keys of another sequence, several unlike things, or parts of the keys of which two kernels have other ideas.
    """
    unlike = len({finding.reason for finding in findings}) > 1 and candidate.order < LIKELY
    of_stages = isinstance(candidate, (OfConstant, OfArguments)) and candidate.order == UNLIKE
    return repair.is_confirmed and (findings[0].reason == "foreign sequence" or unlike or of_stages)


def is_chance(repair: Repair, candidate: Candidate, first: Finding) -> bool:
    """Return whether a change may make the launches right by chance, so that it is not shown.

    An unlikely one needs many launches that it makes right. Beside a cause that is known, a weak one is not shown; nor
    is an unusual one beside a cause read from numbers, such as half of a sink that counts as another number.
    """
    if candidate.order >= UNLIKELY and repair.failed < MANY_FAILED:
        return True
    sure = first.reason not in _NO_CAUSES and not first.vague
    if sure and candidate.order >= ODD and not candidate.steps and first.reason in _OF_MASKS:
        return True  # it may lead round what is wrong, as tiles that begin earlier do
    weak = not repair.is_confirmed or candidate.is_sweeping
    if sure and weak and candidate.order >= (LIKELY if repair.failed >= MANY_FAILED else LIKELIEST):
        return True
    told = first.reason in OF_NUMBERS and not contradicts(repair, candidate, first)
    return sure and told and candidate.order >= LIKELY


def _of_grid(grown: OfGrid, repair: Repair, first: Finding) -> Finding:
    """Return that a launch has too few programs, behind the words of what is never written, or too many."""
    launch = f"{repair.place} launches {grown.kernel} with {grown.old}, and is right with {grown.new}"
    if grown.fewer:
        cause = f"address: too many programs of {grown.kernel} along axis {grown.axis}"
        return Finding("address", f"{launch}: the others have no row to compute", cause=cause)
    cause = f"unwritten: too few programs of {grown.kernel} along axis {grown.axis}"
    if first.reason != "unwritten":
        return Finding("unwritten", f"{launch}: what the others answer is never computed", cause=cause)
    return Finding("unwritten", f"{first.words}: {launch}", cause=cause)


_NO_CAUSES: Final = frozenset({"unknown", "arithmetic"})
"""Reasons that say only that, or by how much, the outputs are wrong."""
_TERMS: Final[dict[str, frozenset[str]]] = {
    "sink": frozenset({"sink", "sinks"}),
    "slope": frozenset({"alibi", "slope", "slopes"}),
    "soft cap": frozenset({"softcap", "tanh", "cap"}),
    "bias": frozenset({"bias", "qq"}),
    "scale": frozenset({"scale", "scales", "factor", "factors", "descale", "dequantize"}),
}
"""Terms of a score or a denominator, and words in the source of what computes them."""
_OF_MASKS: Final = frozenset({"causal", "window", "mask"})


def contradicts(repair: Repair, candidate: Candidate, finding: Finding) -> bool:
    """Return whether a finding is about another mechanism than the change that mends the kernel.

    A change of a float is none of masks and addresses, and a sink absorbs any error of the sum of the keys' weights. A
    change of an address, a mask or of another term's words in the source is none of a term of the score or of its sum,
    where cases that were right stay right with it.
    """
    if not isinstance(candidate, AtPlace):
        return repair.is_confirmed and finding.reason in OF_NUMBERS
    if candidate.element == "f32" and not candidate.loads:
        words = {part for name in names_in(_source_around(candidate)) for part in name.lower().split("_")}
        named = {term for term, own in _TERMS.items() if own & words}
        about_keys = finding.reason in PLACES or finding.words.endswith(" twice")
        moved = candidate.name.startswith(MOVED)  # terms between the two lines may be meant as well
        other = finding.reason in _TERMS and bool(named) and finding.reason not in named and not moved
        absorbed = finding.reason == "sink" and "sink" not in named and repair.is_confirmed
        return about_keys or other or absorbed
    seen = ("the denominator", "is not applied")
    of_numbers = finding.reason in OF_NUMBERS or any(words in finding.words for words in seen)
    return repair.is_confirmed and not candidate.loads and of_numbers


def _source_around(candidate: AtPlace) -> str:
    """Return the words of a change and the lines of its place and of the calls that lead there, the outermost apart."""
    lines = [text_of(place) for place in candidate.places[:2]]
    return " ".join((candidate.old, candidate.new, *lines))
