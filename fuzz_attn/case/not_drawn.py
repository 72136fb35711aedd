"""Not drawn: the features of a family that no case of a run has, and why."""

from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

from fuzz_attn.case.aspects import FEATURES, Feature, words_of

Reason: TypeAlias = Literal["no parameter", "layout", "not promised", "left out", "refused", "backend"]

NotDrawn: TypeAlias = dict[Feature, Reason]

WORDS: Final[dict[Reason, str]] = {
    "no parameter": "no parameter",
    "layout": "not in this layout of the caches",
    "not promised": "no signature promises that; `promises` of a binding can (docs/targets.md)",
    "left out": "left out by its domain",
    "refused": "refused",
    "backend": "only in the simulator",
}
"""Each reason, in the order in which they are listed."""

FEATURE_OF_WORDS: Final[dict[str, Feature]] = {aspect.words: name for name, aspect in FEATURES.items()}


def sentences(found: Mapping[Feature, Reason]) -> Iterator[str]:
    """Yield the features that are not drawn for each reason: ``soft cap, sinks: no parameter``."""
    for reason, words in WORDS.items():
        features = words_of([name for name, why in found.items() if why == reason])
        if features:
            yield f"{', '.join(features)}: {words}"
