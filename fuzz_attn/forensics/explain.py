"""Explain: why a case fails. Where the case itself leaves several reasons, larger ones of its kind are tried too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.case.aspects import FEATURES, FEATURES_OF
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.changes import with_dense_caches, with_head_size
from fuzz_attn.case.description import describe
from fuzz_attn.case.domain import unpromised
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import HeadLayout, PageLayout, Sequence, is_fp8
from fuzz_attn.case.recipes import CAUSAL, Chunks, NormalScores
from fuzz_attn.errors import CaseError, FuzzAttnError
from fuzz_attn.forensics.accesses import CACHES, NAMES, accessed
from fuzz_attn.forensics.explanation import Explanation, Finding, count, ranges, told_apart, without_numbers
from fuzz_attn.forensics.inquiry import MOST_FINDINGS, Inquiry
from fuzz_attn.forensics.lab import SECONDS
from fuzz_attn.forensics.missing_launches import missing_launch, small_block
from fuzz_attn.forensics.overwritten_rows import overwritten_rows, writer_of_padding
from fuzz_attn.forensics.padded_stores import gap_for, padded_store
from fuzz_attn.forensics.rejections import rejection_findings
from fuzz_attn.forensics.wrong_outputs import PADDED_ROWS, READ_AS
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.check import all_failures
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.named_causes import named_paths

WIDE_HEAD: Final = 24
"""A head size for which the padding to a power of two overlaps the next head in part only."""
NO_LIMIT: Final = 4096
PARTS: Final = 16
"""Parts of the keys that a launcher may choose by itself."""
TILE: Final = 64
"""Keys of which a part has at least one tile."""
OTHER_VALUES: Final = (8, 4)
"""Sizes of values that are tried where a scale may be that of another size; the second one where it is the first."""


class Growth(NamedTuple):
    """How much longer a sibling is: keys, query tokens, and keys of the window."""

    keys: int
    queries: int
    window: int = 0


GROWTHS: Final = (Growth(21, 3), Growth(75, 3), Growth(21, 0))
WITH_WINDOW: Final = (Growth(21, 3), Growth(21, 3, 5), Growth(75, 3, 37), Growth(21, 0))


def siblings(case: AttentionCase) -> Iterator[AttentionCase]:
    """Yield longer cases with the same features, with two sequences where there is one."""
    for growth in WITH_WINDOW if case.window or isinstance(case.mask, Chunks) else GROWTHS:
        longer = _grown(case, growth)
        if longer is not None:
            yield longer
    more = with_more_heads(case)
    if more is not None:
        yield more


def with_other_scales(case: AttentionCase) -> AttentionCase | None:
    """Return a longer case whose scales are no powers of each other; None where it has no scales."""
    longer = _grown(case, Growth(21, 3)) if is_fp8(case.dtypes.kv) or is_fp8(case.dtypes.q) else None
    if longer is None:
        return None
    scales = msgspec.structs.replace(case.scales, k=0.75, v=1.25, q=1.5 if is_fp8(case.dtypes.q) else case.scales.q)
    try:
        return replace(longer, scales=scales)
    except CaseError:
        return None


def with_other_sizes(case: AttentionCase) -> AttentionCase | None:
    """Return a longer case whose numbers of heads and columns of a value differ; None without a size of values."""
    longer = _grown(case, Growth(21, 3)) if case.heads.value_size else None
    if longer is None:
        return None
    size = OTHER_VALUES[case.heads.value_size == OTHER_VALUES[0]]
    try:
        return replace(longer, heads=msgspec.structs.replace(longer.heads, num_queries_per_kv=3, value_size=size))
    except CaseError:
        return None


def without_empty(case: AttentionCase) -> AttentionCase | None:
    """Return a case without its empty sequences; None if it has none, or only such."""
    answered = tuple(sequence for sequence in case.sequences if sequence.query_len)
    if not answered or len(answered) == len(case.sequences):
        return None
    try:
        return replace(case, sequences=answered)
    except CaseError:
        return None


def with_a_token_each(case: AttentionCase) -> AttentionCase | None:
    """Return a case whose empty sequences have a query token; None where it cannot exist."""
    sequences = tuple(Sequence(max(sequence.query_len, 1), sequence.context_len) for sequence in case.sequences)
    try:
        return replace(case, sequences=sequences, overrides=())
    except CaseError:
        return None


def with_one_token(case: AttentionCase) -> AttentionCase | None:
    """Return a case whose sequences have one query token and as many keys; None where they have, or it cannot exist.

    Where a decode is answered apart, it would be about another kernel.
    """
    decodes = FAMILIES[case.family].decodes_apart or case.filter_by_query_len
    if decodes or all(sequence.query_len <= 1 for sequence in case.sequences):
        return None
    sequences = (each if each.query_len <= 1 else Sequence(1, each.seq_len - 1) for each in case.sequences)
    try:
        return replace(case, sequences=tuple(sequences), overrides=())
    except CaseError:
        return None


def with_one_query_head(case: AttentionCase) -> AttentionCase | None:
    """Return a case with one query head for each KV head; None where it has no more, or it cannot exist."""
    if case.heads.num_queries_per_kv == 1:
        return None
    try:
        return replace(case, heads=msgspec.structs.replace(case.heads, num_queries_per_kv=1), overrides=())
    except CaseError:
        return None


def with_one_page(case: AttentionCase) -> AttentionCase | None:
    """Return a case whose sequences have no more keys than a page; None where they have none, or more new tokens."""
    size = case.pages.block_size
    if case.max_seq_len <= size or any(sequence.query_len > size for sequence in case.sequences):
        return None
    shorter = tuple(
        Sequence(sequence.query_len, min(sequence.context_len, size - sequence.query_len))
        for sequence in case.sequences
    )
    try:
        return replace(case, sequences=shorter, overrides=())
    except CaseError:
        return None


def with_more_heads(case: AttentionCase) -> AttentionCase | None:
    """Return a longer case with two KV heads and groups of two; None where it has as many heads."""
    if case.heads.num_kv_heads > 1 and case.heads.num_queries_per_kv > 1:
        return None
    longer = _grown(case, Growth(21, 3))
    if longer is None:
        return None
    try:
        return replace(longer, heads=HeadLayout(2, 2, longer.heads.head_size))
    except CaseError:
        return None


def with_keys_in_all_parts(case: AttentionCase) -> AttentionCase | None:
    """Return a case in which each segment or split of a sequence has keys; None where it cannot exist."""
    parts = max(case.launch.num_segments or 0, PARTS)
    keys = parts * max(case.launch.tile_size or 0, TILE)
    tokens = (min(max(each.query_len, 1), keys) for each in case.sequences)
    try:
        return replace(
            case,
            sequences=tuple(Sequence(each, keys - each) for each in tokens),
            window=0,
            scores=NormalScores(),
            overrides=(),
        )
    except CaseError:
        return None


def without_limit(case: AttentionCase) -> AttentionCase | None:
    """Return a case without a window with one that hides nothing; None for one with a window or without a choice."""
    return None if case.window or "window" not in FEATURES_OF[case.family] else replace(case, window=NO_LIMIT)


def difference(case: AttentionCase, other: AttentionCase) -> str:
    """Return the lines of a case in words that another case does not have."""
    known = describe(case)
    return "; ".join(f"{what}: {words}" for what, words in describe(other) if (what, words) not in known)


def _grown(case: AttentionCase, growth: Growth) -> AttentionCase | None:
    """Return a longer case; None where it cannot exist."""
    sequences = tuple(_longer(sequence, growth, case) for sequence in case.sequences)
    if len(sequences) == 1:
        first = sequences[0]
        sequences = (first, msgspec.structs.replace(first, context_len=first.context_len + 4))
    window = case.window + growth.window if case.window else 0
    mask = Chunks(case.mask.size + growth.window) if isinstance(case.mask, Chunks) else case.mask
    try:
        longer = replace(case, sequences=sequences, window=window, mask=mask, scores=NormalScores(), overrides=())
        size = case.heads.head_size
        if (size < WIDE_HEAD and size & (size - 1)) or size < 16:
            longer = with_head_size(longer, size=WIDE_HEAD)
    except CaseError:
        return None
    return longer


def _longer(sequence: Sequence, growth: Growth, case: AttentionCase) -> Sequence:
    """Return a sequence with more keys; its kernel stays the same where that depends on the query's length."""
    if not sequence.query_len:
        return sequence
    decodes = FAMILIES[case.family].decodes_apart or case.filter_by_query_len
    more = 0 if decodes and sequence.query_len == 1 else growth.queries
    return Sequence(sequence.query_len + more, sequence.context_len + growth.keys)


SHIFTED: Final = ("causal", "unwritten", "race", "address")
"""Reasons that may follow from rows that are taken for other heads, which a case with one head cannot show."""


def explain(experiment: Experiment, relation: str | None = None) -> Explanation:
    """Return why the case of an experiment fails, as far as more launches tell it."""
    return msgspec.structs.replace(_explained(experiment, relation), only_with=named_paths(experiment).words)


def _explained(experiment: Experiment, relation: str | None) -> Explanation:
    failures = [verdict for verdict in all_failures(experiment, relation) if not verdict.passed]
    if not failures:
        return Explanation((Finding("unknown", "the case passes, so there is nothing to explain"),))
    rejected = rejection_findings(experiment)
    if rejected:
        return Explanation(rejected, launches=int(isinstance(experiment.backend, SimulatorBackend)))
    return _of_failures(experiment, relation, failures)


def _of_failures(experiment: Experiment, relation: str | None, failures: list[Verdict]) -> Explanation:
    until = time.process_time() + SECONDS
    found = Inquiry(experiment, failures, until).explanation()
    accesses = bool(experiment.first.observations) or any(verdict.kind == WRITTEN_OUTSIDE for verdict in failures)
    of_access = _of_padding(experiment, found) or _of_accesses(experiment, found) if accesses else None
    if of_access is not None:
        return of_access
    if found.findings[0].vague or found.reason in SHIFTED:
        told = _of_heads(experiment, found, until)
        if told is not None:
            return told
    outside = (
        _of_padded_rows(experiment, found)
        or _of_missing_launch(experiment, found)
        or _of_overwritten_rows(experiment, found)
        or _of_far_pages(experiment, found)
        or _of_unwritten_parts(experiment, found)
    )
    if outside is not None:
        return outside
    if found.findings[0].vague:
        return (
            _row_of_an_empty_sequence(experiment, found)
            or _hidden_by_no_window(experiment, found)
            or _beside_chunks(experiment, found)
            or _of_siblings(experiment, found, until)
        )
    return (
        _beside_chunks(experiment, found)
        or _of_scores_too(experiment, found, until)
        or _of_later_pages(experiment, found)
    )


def _beside_chunks(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return that a window is wrong only beside chunks, where the case passes without them."""
    case = experiment.case
    if found.reason != "window" or not case.window or not isinstance(case.mask, Chunks):
        return None
    if _failures_of(experiment.with_target(replace(case, mask=CAUSAL), experiment.target)) != []:
        return None
    first = found.findings[0]
    words = f"{first.words}; right without chunks, so the window is wrong only beside them"
    return msgspec.structs.replace(found, findings=(msgspec.structs.replace(first, words=words), *found.findings[1:]))


def _of_scores_too(experiment: Experiment, found: Explanation, until: float) -> Explanation | None:
    """Return that scores have a wrong scale too, which a case cannot show whose rows see one key: it weighs 1."""
    case = experiment.case
    alone = case.max_seq_len == 1 or case.window == 1
    longer = with_other_scales(case) if alone and found.reason == "scale" else None
    told = None if longer is None else _told(experiment, longer, until)
    if longer is None or told is None or told.reason != "scale" or told.findings[0].vague:
        return None
    same = without_numbers(told.words) == without_numbers(found.words)
    return None if same else _joined(case, longer, found, told)


def _of_accesses(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return what an access is wrong with, where the case is right without one trait of it."""
    return (
        _of_far_offsets(experiment, found)
        or _of_cache_strides(experiment, found)
        or _of_rows_in_one_place(experiment, found)
        or _row_of_an_empty_sequence(experiment, found)
    )


def _of_rows_in_one_place(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return of which rows of a tile a store keeps one, where it is right with one of them, and only then."""
    conflict = next((each for each in found.findings if each.cause.startswith("conflicting_store at ")), None)
    if conflict is None:
        return None
    cases = {
        "query token of a sequence": with_one_token(experiment.case),
        "query head of a group": with_one_query_head(experiment.case),
    }
    right = {
        what: _failures_of(experiment.with_target(case, experiment.target)) == []
        for what, case in cases.items()
        if case is not None
    }
    told = [what for what, is_right in right.items() if is_right]
    if len(told) != 1:
        return None
    one, _, of = told[0].partition(" of ")
    stored = f"right with one {one} of each {of.removeprefix('a ')}: the rows of several are stored in one place"
    first = msgspec.structs.replace(conflict, words=f"{conflict.words}; {stored}")
    return _with_cause(found, first, conflict.cause, instead_of=conflict)


OF_EMPTY: Final = "foreign sequence: a row of another sequence is taken for one without query tokens"
"""The cause of what is read and written for such a sequence, which may be another row or memory of none."""
WRITTEN_OUTSIDE: Final = "written_outside"


def _of_siblings(experiment: Experiment, found: Explanation, until: float) -> Explanation:
    """Return an explanation with the finding of a larger case in front, if there is one that says more.

    Where that is what the case itself shows, perhaps beside other mistakes, the words are those of the case.
    """
    launches, own = found.launches, found.findings[0]
    of_scales = found.reason in ("scale", "arithmetic")
    scaled = (with_other_scales(experiment.case), with_other_sizes(experiment.case)) if of_scales else ()
    for case in (*filter(None, scaled), *siblings(experiment.case)):
        told = _told(experiment, case, until)
        launches += told.launches if told is not None else 0
        weaker = told is not None and told.reason == found.reason == "denominator"
        if told is None or told.findings[0].vague or weaker:
            continue
        shared = told_apart(own, told.findings[0])
        if shared is not None:
            return msgspec.structs.replace(found, findings=(shared, *found.findings[1:]), launches=launches)
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


def _of_missing_launch(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return that a kernel is not launched, or with too small blocks, where that is why rows are never written."""
    first = found.findings[0]
    missing = missing_launch(experiment, first) or small_block(experiment, first)
    return None if missing is None else msgspec.structs.replace(found, findings=(missing, *found.findings[1:]))


def _of_overwritten_rows(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return that a later kernel of the call stores rows that were right, where none takes them for other rows."""
    first = None if found.reason == "foreign sequence" else overwritten_rows(experiment)
    if first is None:
        return None
    found = msgspec.structs.replace(found, findings=(first, *found.findings)[:MOST_FINDINGS])
    return _row_of_an_empty_sequence(experiment, found) or found


def _of_padded_rows(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return which kernel stores rows behind the last token, where nothing else is wrong."""
    first = found.findings[0]
    kernel = writer_of_padding(experiment) if first.cause == PADDED_ROWS else ""
    return _with_cause(found, first, f"{PADDED_ROWS} by {kernel}") if kernel else None


def _of_unwritten_parts(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return with which features a kernel reads what none has written, where the case passes without one of them.

    The same for errors that only their size shows.
    """
    first, case = found.findings[0], experiment.case
    unread = first.reason != "unwritten" or all(each.kind != "uninitialised" for each in experiment.first.observations)
    if unread and first.reason != "arithmetic":
        return None
    needed = []
    for aspect in FEATURES.values():
        if aspect.present(case) and not aspect.virtual:
            try:
                plain = aspect.without(case)
            except CaseError:
                continue
            if _failures_of(experiment.with_target(plain, experiment.target)) == []:
                needed.append(aspect.words)
    right = f"right without: {', '.join(needed)}" if needed else ""
    full = None if needed or unread else with_keys_in_all_parts(case)
    if full is not None and _failures_of(experiment.with_target(full, experiment.target)) == []:
        right = "right where each part of the keys has some: a part without keys, which nothing has written, is read"
    if not right:
        return None
    words = f"{first.words}; {right}"
    return msgspec.structs.replace(found, findings=(msgspec.structs.replace(first, words=words), *found.findings[1:]))


FAR_OFFSETS: Final = "overflow: offsets of pages in their caches are computed in 32 bits"
"""The cause of an overflow that is gone where pages begin at 0."""


def _of_far_offsets(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return that offsets of pages overflow, where no integer does with pages that begin at 0."""
    case = experiment.case
    overflow = next((each for each in found.findings if each.cause.startswith("overflow at ")), None)
    if overflow is None or not case.pages.first_block:
        return None
    near = replace(case, pages=msgspec.structs.replace(case.pages, first_block=0))
    others = _failures_of(experiment.with_target(near, experiment.target))
    if others is None or any(verdict.kind == "overflow" for verdict in others):
        return None
    return _with_cause(found, overflow, FAR_OFFSETS)


def _of_cache_strides(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return whose strides are not used, where an access outside of a cache is gone if the cache is dense.

    In one sequence whose keys are in the first page only the strides within a page count.
    """
    case, tensors = experiment.case, experiment.first.tensors
    access = next((each for each in found.findings if each.cause.startswith("out_of_bounds at ")), None)
    observation = next((each for each in experiment.first.observations if each.kind == "out_of_bounds"), None)
    cache = accessed(observation, tensors) if access is not None and observation is not None else None
    if access is None or cache is None or cache[0] not in CACHES:
        return None
    name, dense, first_page = cache[0], with_dense_caches(case), in_first_page(case)
    if dense == case or not _accesses_inside(name, dense, experiment):
        return None
    between = first_page is not None and _accesses_inside(name, first_page, experiment)
    which = f"the strides of {NAMES[name]} {'from page to page' if between else 'within a page'} are not used"
    words = f"{access.words}; right with dense caches: {which}"
    return _with_cause(found, msgspec.structs.replace(access, words=words), f"address: {which}", instead_of=access)


def in_first_page(case: AttentionCase) -> AttentionCase | None:
    """Return a case of one sequence whose keys are in page 0; None where it is that already, or cannot be."""
    pages = PageLayout(case.pages.block_size, spare_blocks=case.pages.spare_blocks)
    size = pages.block_size
    longest = max(case.sequences, key=lambda sequence: sequence.seq_len)
    query_len = min(longest.query_len, size)
    sequence = Sequence(query_len, min(longest.context_len, size - query_len))
    try:
        alone = replace(case, sequences=(sequence,), pages=pages, overrides=())
    except CaseError:
        return None
    return None if alone == case else alone


def _accesses_inside(name: str, case: AttentionCase, experiment: Experiment) -> bool:
    """Return whether another case runs and has no access outside of a tensor with this name."""
    other = experiment.with_target(case, experiment.target)
    if _failures_of(other) is None:
        return False
    outside = (each for each in other.first.observations if each.kind == "out_of_bounds")
    return all((accessed(each, other.first.tensors) or ("",))[0] != name for each in outside)


def _with_cause(found: Explanation, first: Finding, cause: str, *, instead_of: Finding | None = None) -> Explanation:
    """Return an explanation with a finding of it in front, which has another cause."""
    others = (each for each in found.findings if each.words != (instead_of or first).words)
    return msgspec.structs.replace(found, findings=(msgspec.structs.replace(first, cause=cause), *others))


def _of_padding(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return which store writes the padding of heads, where nothing else is wrong once heads lie apart."""
    gap = gap_for(experiment.case.heads.head_size_v)
    try:
        strides = msgspec.structs.replace(experiment.case.strides, out_head=gap)
        apart = replace(experiment.case, strides=strides) if gap else None
        first = None if apart is None else padded_store(experiment.with_target(apart, experiment.target))
    except FuzzAttnError:
        return None
    return None if first is None else msgspec.structs.replace(found, findings=(first,))


def _of_far_pages(experiment: Experiment, found: Explanation) -> Explanation | None:
    """Return that large page numbers are read wrongly, where the case passes with pages that begin at 0."""
    case, first = experiment.case, experiment.case.pages.first_block
    missed = found.reason in ("segment", "address", "unknown") and not found.findings[0].cause
    if not first or not missed:
        return None
    try:
        near = replace(case, pages=msgspec.structs.replace(case.pages, first_block=0))
    except CaseError:
        return None
    if _failures_of(experiment.with_target(near, experiment.target)) != []:
        return None
    words = f"{found.words}; right where pages begin at 0 and not at {first}: their numbers or offsets are cut"
    return msgspec.structs.replace(found, findings=(Finding("page", words), *found.findings[1:]))


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
    empty = [index for index, sequence in enumerate(experiment.case.sequences) if not sequence.query_len]
    if not empty or (case is None and len(empty) < len(experiment.case.sequences)):
        return None
    if case is not None and not _lacks_finding(experiment, found, case):
        return None
    answered = with_a_token_each(experiment.case)
    if answered is not None and not _lacks_finding(experiment, found, answered, unknown=True):
        return None  # it is not that they are empty, but what their number leads to
    which = f"sequence{'s' * (len(empty) > 1)} {ranges(empty)}"
    right = "" if case is None else "right without "
    seen = found.words.removesuffix(": a wrong stride or offset")
    words = f"{seen}; {right}{which}, which has no query tokens"
    first = Finding("foreign sequence", f"{words}: a row of another sequence is taken for it", cause=OF_EMPTY)
    if any(each.kind == "uninitialised" for each in experiment.first.observations):  # so that no row is taken at all
        first = msgspec.structs.replace(found.findings[0], words=words)
    findings = (first, *found.findings[1:])
    return msgspec.structs.replace(found, findings=findings)


def _lacks_finding(experiment: Experiment, found: Explanation, case: AttentionCase, *, unknown: bool = False) -> bool:
    """Return whether another case passes, or lacks the finding that is looked into; ``unknown`` if it cannot run.

    Where that is about padded rows, it must write none of them either.
    """
    others = _failures_of(experiment.with_target(case, experiment.target))
    if others is None:
        return unknown
    if found.findings[0].cause == PADDED_ROWS and any(verdict.kind == WRITTEN_OUTSIDE for verdict in others):
        return False
    line = experiment.line_asked
    return not others or (bool(line) and all(verdict.site != line for verdict in others))


def _told(experiment: Experiment, case: AttentionCase, until: float) -> Explanation | None:
    """Return the explanation of another case; None where that passes, cannot be launched, or the time is up.

    A case that the target does not promise fails for another reason.
    """
    if time.process_time() > until or unpromised(case, experiment.target.domain):
        return None
    other = experiment.with_target(case, experiment.target)
    failures = _failures_of(other)
    return Inquiry(other, failures, until).explanation() if failures else None


def _joined(case: AttentionCase, other: AttentionCase, found: Explanation, told: Explanation) -> Explanation:
    """Return the findings of a larger case, then those of the case itself without its guesses, which that one ends."""
    own = [each for each in found.findings if not (each.vague or each.words.startswith(READ_AS))]  # that shows in all
    first = told.findings[0]
    if not first.cause:
        first = msgspec.structs.replace(first, cause=found.findings[0].cause)
    findings = (first, *told.findings[1:], *own)[:MOST_FINDINGS]
    return Explanation(
        findings,
        told.heatmap,
        found.launches + told.launches,
        difference(case, other),
        keys_are_right=found.keys_are_right and told.keys_are_right,
    )


def _failures_of(experiment: Experiment) -> list[Verdict] | None:
    """Return the failures of another case; None where it cannot be launched."""
    try:
        return [verdict for verdict in all_failures(experiment) if not verdict.passed]
    except FuzzAttnError:
        return None
