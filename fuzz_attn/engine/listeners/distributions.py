"""Distributions: how the drawn cases and the time of a run are spread, as counts that a report draws.

They stay small however long a run is: numbers are counted in bins, each twice as wide as the one before.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from fuzz_attn.case.plain import Plain, Seconds, Whole
from fuzz_attn.engine.events import CaseJudged, Event
from fuzz_attn.operations.registry import AnyCase, operation_of
from fuzz_attn.oracle.verdict import Verdict

Bin: TypeAlias = Annotated[int, Meta(ge=-(2**20), le=2**20)]
Counts: TypeAlias = dict[str, dict[str, Whole]]
Bins: TypeAlias = dict[str, dict[Bin, Whole]]

EXACT: Final = -12
"""The bin of a ratio of 0. Bin ``n`` above it holds ratios over ``2**(n - 1)`` and up to ``2**n``."""
SMALLEST: Final = -11
LARGEST: Final = 5
"""The first bin also holds smaller ratios, the last one larger ones, Inf and NaN."""


class Distributions(Plain, frozen=True, omit_defaults=False):
    """Counts of the cases of a search, confirming and shrinking not included.

    - ``together`` maps a feature to each feature of its cases, and their number; to itself, the number of its cases.
    - ``paths`` maps each launch path to its features and their cases, and to the path itself, all its cases.
    - ``ratios`` maps each output dtype to bins of ``err / bound``.
    - ``lengths`` maps what was drawn to bins: bin ``n`` counts numbers of ``n`` bits, so from ``2**(n - 1)`` on.
    - ``sizes`` maps what was drawn to each size and its cases, ``types`` each tensor to its dtypes.
    - ``seconds`` is the time of judging, of all workers together, by the reason why cases were judged; ``compile`` is
      that of the search's cases for which a kernel was compiled.
    """

    together: Counts = msgspec.field(default_factory=dict)
    paths: Counts = msgspec.field(default_factory=dict)
    ratios: Bins = msgspec.field(default_factory=dict)
    lengths: Bins = msgspec.field(default_factory=dict)
    sizes: Bins = msgspec.field(default_factory=dict)
    types: Counts = msgspec.field(default_factory=dict)
    seconds: dict[str, Seconds] = msgspec.field(default_factory=dict)


def _counters() -> defaultdict[str, Counter[Any]]:
    return defaultdict(Counter)


@dataclass
class DistributionsTally:
    """Counts the judged cases of a run; call it with each event."""

    together: defaultdict[str, Counter[str]] = field(default_factory=_counters)
    paths: defaultdict[str, Counter[str]] = field(default_factory=_counters)
    ratios: defaultdict[str, Counter[int]] = field(default_factory=_counters)
    lengths: defaultdict[str, Counter[int]] = field(default_factory=_counters)
    sizes: defaultdict[str, Counter[int]] = field(default_factory=_counters)
    types: defaultdict[str, Counter[str]] = field(default_factory=_counters)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __call__(self, event: Event) -> None:
        """Count a judged case."""
        if not isinstance(event, CaseJudged):
            return
        why = "compile" if event.phase == "search" and event.compiled else event.phase
        self.seconds[why] += event.seconds
        if event.phase in ("saved", "search"):
            self._add_features(event.order.case)
            self._add_sizes(event.order.case)
            self._add_ratio(event.order.case, event.verdicts[0])

    def _add_features(self, case: AnyCase) -> None:
        features, path = operation_of(case).all_features_of(case), operation_of(case).launch_path(case)
        for feature in features:
            self.together[feature].update(features)
        self.paths[path].update((path, *features))

    def _add_sizes(self, case: AnyCase) -> None:
        operation = operation_of(case)
        for what, length in operation.lengths_of(case):
            self.lengths[what][length.bit_length()] += 1
        for what, size in operation.sizes_of(case):
            self.sizes[what][size] += 1
        for what, dtype in operation.types_of(case):
            self.types[what][dtype] += 1

    def _add_ratio(self, case: AnyCase, verdict: Verdict) -> None:
        if verdict.ratio is not None:
            dtype = operation_of(case).ratio_type(case)
            self.ratios[dtype][ratio_bin(verdict.ratio)] += 1

    def distributions(self) -> Distributions:
        """Return the counts so far."""
        values = {name: {what: dict(counts) for what, counts in value.items()} for name, value in self._counts()}
        return Distributions(**values, seconds=dict(self.seconds))

    def _counts(self) -> Iterator[tuple[str, dict[str, Counter[Any]]]]:
        return ((name, value) for name, value in vars(self).items() if name != "seconds")


def ratio_bin(ratio: float) -> int:
    """Return the bin of ``err / bound``."""
    if ratio <= 0.0:
        return EXACT
    if not math.isfinite(ratio):
        return LARGEST
    mantissa, exponent = math.frexp(ratio)
    return min(max(exponent - (mantissa == 0.5), SMALLEST), LARGEST)


def merged(parts: Iterable[Distributions]) -> Distributions | None:
    """Return the counts of all shards of one target together; None when there are none."""
    every = list(parts)
    if not every:
        return None
    fields = [name for name in Distributions.__struct_fields__ if name != "seconds"]
    sums: dict[str, Any] = {name: _sums(getattr(part, name) for part in every) for name in fields}
    seconds: defaultdict[str, float] = defaultdict(float)
    for part in every:
        for why, spent in part.seconds.items():
            seconds[why] += spent
    return Distributions(**sums, seconds=dict(seconds))


def _sums(parts: Iterable[dict[str, dict[Any, int]]]) -> dict[str, dict[Any, int]]:
    total = _counters()
    for part in parts:
        for what, counts in part.items():
            total[what].update(counts)
    return {what: dict(counts) for what, counts in total.items()}
