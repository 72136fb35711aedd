"""Built-in targets: this project's own kernels, one for each family."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from fuzz_attn.binding.matching import PUBLISHED
from fuzz_attn.binding.promises import expressible
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.recipes import LogSumExp
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.targets.target import Target

_TILES: Final = (16, 32, 64, 128)


def _everything(family: Family) -> Domain:
    """Return a domain that names each feature of a family's kernel, so that a copy of it keeps them all.

    Those are the features whose parameters it has.
    """
    features, paths = expressible(PUBLISHED[family].binding), FAMILIES[family].paths
    return Domain(family, features=features, paths=paths, tile_sizes=_TILES, tile_hint=True)


def _with_one_size(family: Family) -> Domain:
    """Return the same of a kernel whose values are as large as keys, which no parameter tells."""
    domain = _everything(family)
    return replace(domain, features=domain.features - {"head_size_v"})


_BUILT_IN: Final[dict[str, tuple[str, Domain]]] = {
    "unified": ("unified_attention:unified_attention", _with_one_size("unified")),
    "paged": ("paged_attention:paged_attention_decode", _with_one_size("paged")),
    "context": ("context_attention:context_attention_fwd", _with_one_size("context")),
    "chunked": ("chunked_prefill:chunked_prefill_paged_decode", _with_one_size("chunked")),
    "extend": ("extend_attention:extend_attention", replace(_with_one_size("extend"), block_sizes=(1, 4, 16))),
    "mla_decode": (
        "mla_decode:mla_decode",
        replace(
            _everything("mla_decode"),
            head_sizes=(1, 576),
            value_sizes=(1, 512),
            group_sizes=(1, 128),
            segments=(1, 64),
            tile_sizes=_TILES[:3],
        ),
    ),
    "token_decode": (
        "token_decode:token_decode",
        replace(_everything("token_decode"), block_sizes=(1, 4, 16), segments=(1, 64)),
    ),
    "varlen": (
        "varlen_attention:varlen_attention",
        replace(_everything("varlen"), block_sizes=(1, 5, 12), lse=LogSumExp(order="heads")),
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
