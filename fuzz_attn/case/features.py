"""Features: one list of what a case may have beyond plain paged attention, and when it has it."""

from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.case.families import FAMILIES, Family, Feature
from fuzz_attn.case.parts import INNER_STRIDES, CallForm, DTypes, Strides


class CaseFeature(NamedTuple):
    """One feature: its name, when a case has it, and what a report calls it.

    ``compiled`` features are constexprs of the kernels, so they belong to the compile key. ``identifies`` features
    belong to the signature of a failure and to the statistics of a campaign.
    """

    name: Feature
    words: str
    present: Callable[[CaseFields], bool]
    compiled: bool = False
    identifies: bool = True

    @property
    def families(self) -> tuple[Family, ...]:
        """The families that can express the feature."""
        return tuple(family for family, interface in FAMILIES.items() if self.name in interface.features)


def has_other_signs(case: CaseFields) -> bool:
    """Return whether some scale is 0 or negative."""
    scales = case.scales
    return min(case.softmax_scale, scales.q, scales.k, scales.v, scales.out) <= 0.0


def is_mixed(dtypes: DTypes) -> bool:
    """Return whether the output has another wide type than q, or two tensors have different kinds of fp8."""
    wide = {name for name in (dtypes.q, dtypes.out) if not is_fp8(name)}
    return len(wide) > 1 or len({name for name in (dtypes.q, dtypes.kv, dtypes.out) if is_fp8(name)}) > 1


def has_bias_dtypes(case: CaseFields) -> bool:
    """Return whether slopes or biases are not float32, or sinks float64."""
    return (
        (case.alibi is not None and case.alibi.dtype != "float32")
        or (case.qq_bias is not None and case.qq_bias.dtype != "float32")
        or (case.sinks is not None and case.sinks.dtype == "float64")
    )


def has_inner_strides(case: CaseFields) -> bool:
    """Return whether there are strides that published kernels assume to be dense."""
    bias, strides = case.qq_bias, case.strides
    if bias is not None and (bias.order != "rows" or bias.step != 1):
        return True
    if "bias_column" in strides.far or (FAMILIES[case.family].cache.is_split and has_far_caches(strides)):
        return True
    return strides.key_piece > 0 or any(getattr(strides, name) for name in INNER_STRIDES)


def has_far_caches(strides: Strides) -> bool:
    """Return whether elements of the caches are far apart along an axis."""
    return any(name.startswith("cache_") for name in strides.far)


@cache
def fp8_features(dtypes: DTypes) -> frozenset[Feature]:
    """Return the features that types of a case have."""
    q, kv, out = is_fp8(dtypes.q), is_fp8(dtypes.kv), is_fp8(dtypes.out)
    found: dict[Feature, bool] = {"fp8_q": q, "fp8_kv": kv and not q, "fp8_out": out}
    return frozenset(name for name, present in found.items() if present)


CASE_FEATURES: Final = (
    CaseFeature("window", "sliding window", lambda case: case.window > 0, compiled=True),
    CaseFeature("softcap", "soft cap", lambda case: case.softcap > 0, compiled=True),
    CaseFeature("alibi", "ALiBi slopes", lambda case: case.alibi is not None, compiled=True),
    CaseFeature("qq_bias", "bias between new tokens", lambda case: case.qq_bias is not None, compiled=True),
    CaseFeature("sinks", "sinks", lambda case: case.sinks is not None, compiled=True),
    CaseFeature("fp8_q", "fp8 queries", lambda case: "fp8_q" in fp8_features(case.dtypes)),
    CaseFeature("fp8_kv", "fp8 cache of wider queries", lambda case: "fp8_kv" in fp8_features(case.dtypes)),
    CaseFeature("fp8_out", "fp8 output", lambda case: "fp8_out" in fp8_features(case.dtypes)),
    CaseFeature(
        "filter_by_query_len",
        "skips the sequences of the other family",
        lambda case: case.filter_by_query_len,
        compiled=True,
    ),
    CaseFeature("uint8_cache", "fp8 cache passed as bytes", lambda case: case.uint8_cache),
    CaseFeature("stale_cache", "cache without the new tokens", lambda case: case.stale_cache),
    CaseFeature("large_offsets", "pages far into the caches", lambda case: case.pages.first_block > 0),
    CaseFeature("far_axes", "elements far apart", lambda case: bool(case.strides.far)),
    CaseFeature("strides", "strided tensors", lambda case: case.strides != Strides(), identifies=False),
    CaseFeature(
        "empty_sequences",
        "sequences without query tokens",
        lambda case: not case.sequences or any(not sequence.query_len for sequence in case.sequences),
        identifies=False,
    ),
    CaseFeature(
        "empty_decodes",
        "decodes of length 0",
        lambda case: any(sequence.has_no_key for sequence in case.sequences),
        identifies=False,
    ),
    CaseFeature("padded_tokens", "padded rows of q and out", lambda case: case.padded_tokens > 0, identifies=False),
    CaseFeature("scale_signs", "scales of 0 or below", has_other_signs, identifies=False),
    CaseFeature("mixed_dtypes", "mixed types", lambda case: is_mixed(case.dtypes), identifies=False),
    CaseFeature("bias_dtypes", "slopes or biases of other types", has_bias_dtypes, identifies=False),
    CaseFeature("inner_strides", "strides inside rows and pages", has_inner_strides, identifies=False),
    CaseFeature("call_forms", "arguments in other forms", lambda case: case.form != CallForm(), identifies=False),
)
"""Every feature, in the order in which signatures name them."""

_COMPILED: Final = tuple(feature for feature in CASE_FEATURES if feature.compiled)
_IDENTIFYING: Final = tuple(feature for feature in CASE_FEATURES if feature.identifies)
_BEYOND: Final = {
    family: tuple(feature for feature in CASE_FEATURES if family not in feature.families) for family in FAMILIES
}

COMPILED_FEATURES: Final = tuple(feature.name for feature in _COMPILED)


def features_of(case: CaseFields) -> tuple[Feature, ...]:
    """Return the names of the features that identify a failure of the case, in a fixed order."""
    return tuple(feature.name for feature in _IDENTIFYING if feature.present(case))


def all_features_of(case: CaseFields) -> frozenset[Feature]:
    """Return the names of all features of the case."""
    return frozenset(feature.name for feature in CASE_FEATURES if feature.present(case))


def compiled_features(case: CaseFields) -> dict[Feature, bool]:
    """Return whether the case has each feature that kernels are compiled for."""
    return {feature.name: feature.present(case) for feature in _COMPILED}


def first_feature_beyond(case: CaseFields, family: Family) -> CaseFeature | None:
    """Return the first feature of a case that the family's interface cannot express, None where it has none."""
    return next((feature for feature in _BEYOND[family] if feature.present(case)), None)
