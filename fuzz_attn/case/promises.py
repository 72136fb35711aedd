"""Promises: whether a case lies in the domain of a target, and what of it does not."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.domain import Domain, within
from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.case.features import CASE_FEATURES, all_features_of


def unpromised(case: CaseFields, domain: Domain) -> str:
    """Return what of a case its target does not promise, in words; an empty string where it promises all.

    Large offsets are not counted: a backend without virtual memory takes them out of every domain. A hint for a path is
    not counted where the launcher always chooses by itself.
    """
    return next(_unpromised(case, domain), "")


def missing_feature(case: CaseFields, domain: Domain) -> str:
    """Return the first feature of a case that a domain lacks, in words; an empty string where it has all."""
    present = (feature for feature in CASE_FEATURES if feature.name != "large_offsets" and feature.present(case))
    return next((feature.words for feature in present if not domain.allows(feature.name)), "")


def _unpromised(case: CaseFields, domain: Domain) -> Iterator[str]:
    lacking = missing_feature(case, domain)
    if lacking:
        yield lacking
    words = {feature.name: feature.words for feature in CASE_FEATURES}
    combination = domain.excludes(all_features_of(case))
    if combination:
        yield " together with ".join(words[name] for name in words if name in combination)
    launch, heads = case.launch, case.heads
    if launch.path not in ("auto", *domain.paths) and domain.paths != ("auto",):
        yield f"the path {launch.path}"
    if launch.num_segments and "3d" in domain.paths and not within(launch.num_segments, domain.segments):
        yield f"{launch.num_segments} segments"
    yield from _unpromised_types(case, domain)
    for what, size, allowed in (
        ("heads of {}", heads.head_size, domain.head_sizes),
        ("pages of {}", case.pages.block_size, domain.block_sizes),
        ("{} query heads for each KV head", heads.num_queries_per_kv, domain.group_sizes),
    ):
        if not within(size, allowed):
            yield what.format(size)
    if case.alibi is not None and case.alibi.kind not in domain.alibi_kinds:
        yield f"{case.alibi.kind} ALiBi slopes"


def _unpromised_types(case: CaseFields, domain: Domain) -> Iterator[str]:
    dtypes = case.dtypes
    if not is_fp8(dtypes.q) and dtypes.q not in domain.dtypes:
        yield f"queries of {dtypes.q}"
    if dtypes.kv not in domain.cache_dtypes:
        yield f"a cache of {dtypes.kv}"
    if dtypes.out not in domain.output_dtypes:
        yield f"an output of {dtypes.out}"
