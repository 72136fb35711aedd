"""Statistics of a campaign: what each shard did, as plain data that merges into one summary."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.case.features import features_of
from fuzz_attn.case.plain import Plain
from fuzz_attn.coverage import mask_coverage
from fuzz_attn.coverage.mask_coverage import Mask, TargetCoverage
from fuzz_attn.oracle.verdict import Verdict

PLAIN = "none of these"

Key = TypeVar("Key", int, str)


class Statistics(Plain, frozen=True, omit_defaults=False):
    """What one shard, or all shards of a target together, did.

    ``cases`` counts launched cases while searching, ``shrinking`` those launched to shrink a failure. ``compile_keys``
    maps each key's hash to its number of cases; ``features`` each feature to its number of cases, a plain case under
    its own name; ``ratios`` each output dtype to the largest ``err / bound`` of a passing case. ``kernels_compiled``
    and ``kernels_loaded`` count what Triton made ready on a GPU, the latter kept from an earlier process; each worker
    counts its own, shrinking included. ``unfinished`` launches were still running when the time was up, for
    ``unfinished_seconds`` at most. ``masks`` of the target's kernels, with what they showed in all launches, shrinking
    included.
    """

    target: str
    backend: str = ""
    seed: int = 0
    shards: int = 1
    seconds: float = 0.0
    cases: int = 0
    shrinking: int = 0
    deaths: int = 0
    unfinished: int = 0
    unfinished_seconds: float = 0.0
    compile_keys: dict[int, int] = msgspec.field(default_factory=dict)
    kernels_compiled: int = 0
    kernels_loaded: int = 0
    features: dict[str, int] = msgspec.field(default_factory=dict)
    relations: dict[str, int] = msgspec.field(default_factory=dict)
    ratios: dict[str, float] = msgspec.field(default_factory=dict)
    shims: tuple[str, ...] = ()
    fallback: str = ""
    counterexamples: tuple[str, ...] = ()
    state: str = ""
    masks: tuple[Mask, ...] = ()

    @property
    def coverage(self) -> TargetCoverage:
        """What the file ``coverage.json`` holds of the target."""
        return TargetCoverage(self.target, self.backend, self.fallback, self.cases, self.masks)


class Tally:
    """Counts the cases of one shard while it runs."""

    def __init__(self) -> None:
        self.cases = 0
        self.shrinking = 0
        self.unfinished = 0
        self.unfinished_seconds = 0.0
        self.compile_keys: Counter[int] = Counter()
        self.kernels_compiled = 0
        self.kernels_loaded = 0
        self.features: Counter[str] = Counter()
        self.relations: Counter[str] = Counter()
        self.ratios: dict[str, float] = {}
        self.masks: tuple[Mask, ...] = ()

    def see(self, masks: tuple[Mask, ...]) -> None:
        """Add what masks showed; mostly nothing new."""
        if masks:
            self.masks = mask_coverage.merged((*self.masks, *masks))

    def count(self, case: AttentionCase, relation: str | None, verdict: Verdict) -> None:
        """Count one case that was launched while searching."""
        self.cases += 1
        self.compile_keys[key_hash(case)] += 1
        self.features.update(features_of(case) or (PLAIN,))
        if relation:
            self.relations[relation] += 1
        if verdict.passed and verdict.ratio is not None:
            dtype = "fp8 output" if is_fp8(case.dtypes.out) else case.dtypes.q
            self.ratios[dtype] = max(self.ratios.get(dtype, 0.0), verdict.ratio)

    def fields(self) -> dict[str, Any]:
        """Return the counts under the names that :class:`Statistics` gives them."""
        return {
            "cases": self.cases,
            "shrinking": self.shrinking,
            "unfinished": self.unfinished,
            "unfinished_seconds": self.unfinished_seconds,
            "compile_keys": dict(self.compile_keys),
            "kernels_compiled": self.kernels_compiled,
            "kernels_loaded": self.kernels_loaded,
            "features": dict(self.features),
            "relations": dict(self.relations),
            "ratios": dict(self.ratios),
            "masks": self.masks,
        }


def key_hash(case: AttentionCase) -> int:
    """Return a number for the case's compile key, the same in every process."""
    return zlib.crc32(msgspec.json.encode(case.compile_key))


def merged(parts: Iterable[Statistics]) -> Statistics | None:
    """Return the statistics of all shards of one target together; None when there are none."""
    shards = list(parts)
    if not shards:
        return None
    first = shards[0]
    ratios: dict[str, float] = {}
    for shard in shards:
        for dtype, ratio in shard.ratios.items():
            ratios[dtype] = max(ratios.get(dtype, 0.0), ratio)
    return Statistics(
        target=first.target,
        backend=first.backend,
        seed=first.seed,
        shards=len(shards),
        seconds=max(shard.seconds for shard in shards),
        cases=sum(shard.cases for shard in shards),
        shrinking=sum(shard.shrinking for shard in shards),
        deaths=sum(shard.deaths for shard in shards),
        unfinished=sum(shard.unfinished for shard in shards),
        unfinished_seconds=max(shard.unfinished_seconds for shard in shards),
        compile_keys=_added(shard.compile_keys for shard in shards),
        kernels_compiled=sum(shard.kernels_compiled for shard in shards),
        kernels_loaded=sum(shard.kernels_loaded for shard in shards),
        features=_added(shard.features for shard in shards),
        relations=_added(shard.relations for shard in shards),
        ratios=ratios,
        shims=first.shims,
        fallback=next((shard.fallback for shard in shards if shard.fallback), ""),
        counterexamples=tuple(sorted({path for shard in shards for path in shard.counterexamples})),
        masks=mask_coverage.merged(mask for shard in shards for mask in shard.masks),
    )


def write(statistics: Statistics, path: Path) -> None:
    """Write statistics as JSON; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.encode(statistics))
    os.replace(temporary, path)


def read_all(folder: Path) -> list[Statistics]:
    """Return the statistics of every shard that wrote into a run's folder so far."""
    return [msgspec.json.decode(path.read_bytes(), type=Statistics) for path in sorted(folder.rglob("shard-*.json"))]


def _added(counts: Iterable[dict[Key, int]]) -> dict[Key, int]:
    total: Counter[Key] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)
