"""Broken promises: features that a target states by name and refuses even in the easiest cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fuzz_attn.backends.backend import Backend
from fuzz_attn.calibration.easy_cases import Size, plain_case, sizes
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain, unpromised
from fuzz_attn.case.families import FAMILIES, Feature
from fuzz_attn.case.features import all_features_of, fp8_features
from fuzz_attn.case.parts import CallForm, Sequence, Strides
from fuzz_attn.case.recipes import AlibiRecipe, QQBiasRecipe, SinkRecipe
from fuzz_attn.case.traits import ADDED_FEATURES, with_feature
from fuzz_attn.errors import CaseError, UnsupportedByBackendError
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.refusal import Refusal
from fuzz_attn.strategies.dtypes import fp8_dtypes, mixed_dtypes
from fuzz_attn.targets.target import Target

Site = tuple[str, str, str]


class BrokenPromises:
    """What a target refuses of the features that it promises by name, asked once for each feature."""

    def __init__(self, target: Target, backend: Backend) -> None:
        self.target = target
        self.backend = backend
        self._sites: dict[Feature, frozenset[Site]] = {}

    def by(self, case: AttentionCase, refusal: Refusal) -> Feature | None:
        """Return the promised feature that a case is refused for, None where it is refused for something else.

        A target may refuse a feature beside others or with some sizes: that is no broken promise, but one that is
        refused with all of the usual sizes, and nothing else, is.
        """
        present = sorted(all_features_of(case) & self.target.promised)
        return next((feature for feature in present if refusal.site in self._refusing(feature)), None)

    def _refusing(self, feature: Feature) -> frozenset[Site]:
        """Return the places that refuse a feature; none if it is accepted with some of the usual sizes."""
        if feature not in self._sites:
            self._sites[feature] = self._asked(feature)
        return self._sites[feature]

    def _asked(self, feature: Feature) -> frozenset[Site]:
        sites = set[Site]()
        for size in sizes(self.target.domain):
            pair = self._with_and_without(feature, size)
            if pair is None or self._refusal_of(pair[1]) is not None:
                continue
            refusal = self._refusal_of(pair[0])
            if refusal is None:
                return frozenset()
            sites.add(refusal.site)
        return frozenset(sites)

    def _with_and_without(self, feature: Feature, size: Size) -> tuple[AttentionCase, AttentionCase] | None:
        """Return an easy case with a feature and without; None where the target promises no such case."""
        domain = self.target.domain
        plain = replace(plain_case(domain.family, size), stale_cache=False)
        try:
            case = _with(feature, plain, domain)
        except CaseError:
            return None
        if case is None or feature not in all_features_of(case) or unpromised(case, domain):
            return None
        return case, plain

    def _refusal_of(self, case: AttentionCase) -> Refusal | None:
        experiment = Experiment(case, self.target, self.backend, strict=False)
        try:
            with self.backend.unrecorded():
                return experiment.refusal
        except UnsupportedByBackendError:
            return None


_CHANGES: Final[dict[Feature, dict[str, Any]]] = {
    "filter_by_query_len": {"filter_by_query_len": True},
    "stale_cache": {"stale_cache": True},
    "padded_tokens": {"padded_tokens": 1},
    "strides": {"strides": Strides(q_token=16, out_token=16)},
    "scale_signs": {"softmax_scale": -0.125},
    "inner_strides": {"strides": Strides(page_head=16)},
    "call_forms": {"form": CallForm(extra_table_rows=1, extra_output_rows=1)},
}
_BIASES: Final[dict[Feature, dict[str, Any]]] = {
    "alibi": {"alibi": AlibiRecipe(dtype="float16")},
    "qq_bias": {"qq_bias": QQBiasRecipe(dtype="float16")},
    "sinks": {"sinks": SinkRecipe(dtype="float64")},
}


def _with(feature: Feature, plain: AttentionCase, domain: Domain) -> AttentionCase | None:
    """Return an easy case with a feature in its simplest form, None where there is none."""
    if feature in ADDED_FEATURES:
        return with_feature(plain, feature)
    change = _change(feature, domain)
    return replace(plain, **change) if change else _with_types(feature, plain, domain)


def _change(feature: Feature, domain: Domain) -> dict[str, Any]:
    """Return the fields of an easy case that have a feature; none for features of types and of addresses."""
    if feature == "empty_sequences":  # paged decode has them only in a batch without sequences
        one_token = FAMILIES[domain.family].one_token_each
        return {"sequences": () if one_token else (Sequence(1), Sequence(0, 4))}
    if feature == "empty_decodes":
        return {"sequences": (Sequence(1, 4), Sequence(1, -1))}
    if feature == "bias_dtypes":
        return next((change for name, change in _BIASES.items() if domain.allows(name)), {})
    if feature == "inner_strides" and domain.allows("qq_bias"):
        return {"qq_bias": QQBiasRecipe(step=2)}
    return _CHANGES.get(feature, {})


_TYPES: Final[dict[Feature, Callable[[Domain], Any]]] = {
    "fp8_q": fp8_dtypes,
    "fp8_kv": fp8_dtypes,
    "fp8_out": fp8_dtypes,
    "uint8_cache": fp8_dtypes,
    "mixed_dtypes": mixed_dtypes,
}


def _with_types(feature: Feature, plain: AttentionCase, domain: Domain) -> AttentionCase | None:
    """Return an easy case with other types; None for features of addresses, which no host code refuses."""
    if feature not in _TYPES:
        return None
    wanted = frozenset[Feature]({"fp8_kv"} if feature == "uint8_cache" else {feature})
    for dtypes in _TYPES[feature](domain):
        usual = feature == "fp8_q" or dtypes.q == plain.dtypes.q
        if usual and (feature == "mixed_dtypes" or fp8_features(dtypes) == wanted):
            return replace(plain, dtypes=dtypes, uint8_cache=feature == "uint8_cache")
    return None
