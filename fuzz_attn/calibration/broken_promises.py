"""Broken promises: features that a target states by name and refuses even in the easiest cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fuzz_attn.backends.backend import Backend
from fuzz_attn.calibration.easy_cases import Size, plain_case, sizes
from fuzz_attn.case.aspects import FEATURES, STATED, Feature, all_features_of, fp8_features, with_feature
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain, unpromised
from fuzz_attn.case.parts import Strides
from fuzz_attn.case.recipes import AlibiRecipe, QQBiasRecipe, SinkRecipe
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
        """Return an easy case with a feature and without; None where the target promises no such case.

        The easiest case of some targets has the feature already.
        """
        domain = self.target.domain
        plain = replace(plain_case(domain.family, size), stale_cache=False)
        try:
            case = plain if feature in all_features_of(plain) else _with(feature, plain, domain)
            without = FEATURES[feature].without(plain)
        except CaseError:
            return None
        if case is None or feature not in all_features_of(case) or unpromised(case, domain):
            return None
        return case, without

    def _refusal_of(self, case: AttentionCase) -> Refusal | None:
        experiment = Experiment(case, self.target, self.backend, strict=False)
        try:
            with self.backend.unrecorded():
                return experiment.refusal
        except UnsupportedByBackendError:
            return None


_BIASES: Final[dict[Feature, dict[str, Any]]] = {
    "alibi": {"alibi": AlibiRecipe(dtype="float16")},
    "qq_bias": {"qq_bias": QQBiasRecipe(dtype="float16")},
    "sinks": {"sinks": SinkRecipe(dtype="float64")},
}


def _with(feature: Feature, plain: AttentionCase, domain: Domain) -> AttentionCase | None:
    """Return an easy case with a feature in its simplest form, None for features of addresses: no host refuses them."""
    if feature in _TYPES:
        return _with_types(feature, plain, domain)
    if feature in STATED:
        return replace(plain, **{feature: getattr(domain, STATED[feature])})
    if feature == "bias_dtypes":
        return next((replace(plain, **change) for name, change in _BIASES.items() if domain.allows(name)), None)
    if feature == "inner_strides":
        bias = domain.allows("qq_bias")
        return replace(plain, qq_bias=QQBiasRecipe(step=2)) if bias else replace(plain, strides=Strides(page_head=16))
    return with_feature(plain, feature) if FEATURES[feature].has_form else None


_TYPES: Final[dict[Feature, Callable[[Domain], Any]]] = {
    "fp8_q": fp8_dtypes,
    "fp8_kv": fp8_dtypes,
    "fp8_out": fp8_dtypes,
    "uint8_cache": fp8_dtypes,
    "mixed_dtypes": mixed_dtypes,
}


def _with_types(feature: Feature, plain: AttentionCase, domain: Domain) -> AttentionCase | None:
    """Return an easy case with other types, None where the domain has none that are easy."""
    wanted = frozenset[Feature]({"fp8_kv"} if feature == "uint8_cache" else {feature})
    for dtypes in _TYPES[feature](domain):
        usual = feature == "fp8_q" or dtypes.q == plain.dtypes.q
        if usual and (feature == "mixed_dtypes" or fp8_features(dtypes) == wanted):
            return replace(plain, dtypes=dtypes, uint8_cache=feature == "uint8_cache")
    return None
