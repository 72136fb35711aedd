"""Built-in targets: this project's own kernels, one for each family."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from fuzz_attn.case.aspects import FEATURES_OF, Feature
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.recipes import LogSumExp
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.targets.target import Target

_TILES: Final = (16, 32, 64, 128)


_ABSENT: Final[frozenset[Feature]] = frozenset(("lse", "head_size_v"))
"""Features that the kernels of these families do not have."""


def _everything(family: Family) -> Domain:
    """Return a domain that names each feature of a family's kernel, so that a copy of it keeps them all."""
    interface, features = FAMILIES[family], FEATURES_OF[family] - _ABSENT
    return Domain(family, features=features, paths=interface.paths, tile_sizes=_TILES, tile_hint=True)


_BUILT_IN: Final[dict[str, tuple[str, Domain]]] = {
    "unified": ("unified_attention:unified_attention", _everything("unified")),
    "paged": ("paged_attention:paged_attention_decode", _everything("paged")),
    "context": ("context_attention:context_attention_fwd", _everything("context")),
    "chunked": ("chunked_prefill:chunked_prefill_paged_decode", _everything("chunked")),
    "extend": ("extend_attention:extend_attention", replace(_everything("extend"), block_sizes=(1, 4, 16))),
    "mla_decode": (
        "mla_decode:mla_decode",
        Domain(
            "mla_decode",
            features=FEATURES_OF["mla_decode"],
            head_sizes=(1, 576),
            value_sizes=(1, 512),
            group_sizes=(1, 128),
            paths=FAMILIES["mla_decode"].paths,
            segments=(1, 64),
            tile_sizes=_TILES[:3],
            tile_hint=True,
        ),
    ),
    "token_decode": (
        "token_decode:token_decode",
        Domain(
            "token_decode",
            features=FEATURES_OF["token_decode"],
            value_sizes=(1, 256),
            block_sizes=(1, 4, 16),
            paths=FAMILIES["token_decode"].paths,
            segments=(1, 64),
            tile_sizes=_TILES,
            tile_hint=True,
        ),
    ),
    "varlen": (
        "varlen_attention:varlen_attention",
        Domain(
            "varlen",
            features=FEATURES_OF["varlen"],
            block_sizes=(1, 5, 12),
            tile_sizes=_TILES,
            tile_hint=True,
            lse=LogSumExp(order="heads"),
        ),
    ),
}
"""Target: its launcher as module:function below ``fuzz_attn.kernels``, and its domain."""

BUILT_IN_LAUNCHERS: Final[dict[Family, str]] = {domain.family: place for place, domain in _BUILT_IN.values()}
"""The launcher of each built-in target as module:function below ``fuzz_attn.kernels``."""

_ROUNDING: Final = RoundingModel(tanh_units=24.0, normalises_last=True)
"""An exponential off by 6 units moves the quotient just above 1/4 by at most 13 units. Four roundings, one of them an
approximate division, move it by at most 11 more. Below 1/4 the kernels use a series."""

_MERGING: Final = {
    "mla_decode": RoundingModel(merges_logarithms=True, normalises_last=True),
    "token_decode": replace(_ROUNDING, merges_logarithms=True),
}
"""Those of targets that divide the sums of each split, and merge splits by their log-sum-exps."""

BUILT_IN_NAMES: Final = tuple(BUILT_IN_LAUNCHERS)
"""The names of the built-in targets; each has the name of its family."""


def built_in(name: str) -> Target | None:
    """Return the built-in target of that name, or None.

    Imports Triton, so the backend must be prepared before the first call.
    """
    if name not in _BUILT_IN:
        return None
    place, domain = _BUILT_IN[name]
    rounding = _MERGING.get(name, _ROUNDING)
    if rounding.merges_logarithms:
        rounding = replace(rounding, most_segments=max(domain.segments))
    return Target(name=name, call=launcher(place), domain=domain, rounding=rounding)


def launcher(place: str) -> Callable[..., object]:
    """Return a launcher of this project as ``module:function`` below ``fuzz_attn.kernels``; imports Triton."""
    module, _, function = place.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(f"fuzz_attn.kernels.{module}"), function)
    return found
