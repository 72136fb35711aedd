"""ABIs: what a family's signature looks like, what inputs a callable's signature promises, and how it is called.

Calls are made by keyword, and only with arguments that the callable's signature has, since published versions differ
in what follows ``alibi_slopes``. The names on the left are the published signature's, on the right the glossary's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from fuzz_attn.case import Abi, AttentionCase, LaunchHints, LaunchPath
from fuzz_attn.domain import ALL_FEATURES, Domain, Feature
from fuzz_attn.errors import TargetError
from fuzz_attn.tensors import AttentionTensors

Parameters = frozenset[str]
Arguments = dict[str, Any]

_REQUIRED: Final = frozenset(
    ("q", "k", "v", "out", "cu_seqlens_q", "seqused_k", "softmax_scale", "block_table"),
)
_FEATURE_ARGUMENTS: Final[dict[Feature, tuple[str, ...]]] = {
    "window": ("window_size",),
    "softcap": ("softcap",),
    "alibi": ("alibi_slopes",),
    "qq_bias": ("qq_bias",),
    "sinks": ("sinks",),
    "fp8_kv": ("k_descale", "v_descale"),
    "fp8_q": ("q_descale", "k_descale", "v_descale"),
    "fp8_out": ("output_scale",),
}
_SCRATCH: Final = (
    "seq_threshold_3D",
    "num_par_softmax_segments",
    "softmax_segm_output",
    "softmax_segm_max",
    "softmax_segm_expsum",
)


@dataclass(frozen=True)
class Signature:
    """The keyword names that a callable takes; ``anything`` when it has ``**kwargs``.

    ``positional`` are required too, and cannot be given by keyword.
    """

    names: Parameters
    required: Parameters
    positional: Parameters
    anything: bool

    def takes(self, name: str) -> bool:
        """Return whether the callable can be given the argument by keyword."""
        return self.anything or name in self.names


def signature_of(call: Callable[..., object]) -> Signature:
    """Return the keyword names of a callable, also of one that Triton or functools wrapped."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError) as error:
        raise TargetError(f"has no signature that could be read: {error}") from error
    keyword = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Signature(
        names=frozenset(p.name for p in keyword),
        required=frozenset(p.name for p in keyword if p.default is p.empty),
        positional=frozenset(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty),
        anything=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def fits_unified(signature: Signature) -> str:
    """Return why a signature is not the unified one, or an empty string when it is."""
    lacking = sorted(name for name in _REQUIRED if not signature.takes(name))
    if lacking:
        return f"lacks {', '.join(lacking)}"
    if signature.positional:
        return f"requires {', '.join(sorted(signature.positional))} by position alone"
    unknown = sorted(signature.required - _known_unified())
    return f"requires {', '.join(unknown)}, which the ABI does not know" if unknown else ""


def unified_domain(signature: Signature) -> Domain:
    """Return the inputs that a unified callable promises by its signature alone.

    Features whose argument it lacks are left out. fp8 queries are left out too: published versions compute them in
    ways that differ, so a target must declare them.
    """
    features = {
        feature
        for feature in ALL_FEATURES
        if all(signature.takes(name) for name in _FEATURE_ARGUMENTS.get(feature, ())) and feature != "fp8_q"
    }
    paths: tuple[LaunchPath, ...] = ("auto",)
    if all(name in signature.names for name in _SCRATCH):
        paths = ("2d", "3d")
    return Domain(features=frozenset(features), paths=paths, fp8_q_scales=False)


def unified_arguments(signature: Signature, case: AttentionCase, tensors: AttentionTensors) -> Arguments:
    """Return the keyword arguments of one unified call, of those that the callable takes."""
    window = (case.window - 1, 0) if case.window else (-1, -1)
    arguments: Arguments = {
        "q": tensors.query,
        "k": tensors.key_cache,
        "v": tensors.value_cache,
        "out": tensors.output,
        "cu_seqlens_q": tensors.query_start_loc,
        "max_seqlen_q": tensors.max_query_len,
        "seqused_k": tensors.seq_lens,
        "max_seqlen_k": tensors.max_seq_len,
        "softmax_scale": tensors.softmax_scale,
        "causal": True,
        "window_size": window,
        "block_table": tensors.block_table,
        "softcap": tensors.softcap,
        "q_descale": tensors.q_scale if case.scales.q != 1.0 else None,
        "k_descale": tensors.k_scale,
        "v_descale": tensors.v_scale,
        "alibi_slopes": tensors.alibi_slopes,
        "qq_bias": tensors.qq_bias,
        "sinks": tensors.sinks,
        "output_scale": tensors.out_scale,
        "kv_quant_mode": int(tensors.k_scale is not None),
        **_hints(signature, case.launch),
        **_scratch(case, tensors),
    }
    return {name: value for name, value in arguments.items() if _given(signature, name)}


def _given(signature: Signature, name: str) -> bool:
    """Return whether to pass an argument: what only later versions have goes to those alone that name it."""
    optional = ("kv_quant_mode", "num_segments", "tile_size", *_SCRATCH)
    return name in signature.names or (signature.anything and name not in optional)


def _hints(signature: Signature, launch: LaunchHints) -> Arguments:
    """Return this project's own launch hints: how many segments (0 is the 2D kernel) and keys in a tile."""
    segments = {"auto": None, "2d": 0, "3d": launch.num_segments or 4}[launch.path]
    return {"num_segments": segments, "tile_size": launch.tile_size or None}


def _scratch(case: AttentionCase, tensors: AttentionTensors) -> Arguments:
    """Return the scratch by which versions since December 2025 are asked for the 3D kernel, or five times None."""
    if case.launch.path != "3d":
        return dict.fromkeys(_SCRATCH)
    rows, heads = tensors.query.shape[:2]
    segments = case.launch.num_segments or 4
    padded = 1 << (case.heads.head_size - 1).bit_length()
    device = tensors.query.device
    return {
        "seq_threshold_3D": len(case.sequences),
        "num_par_softmax_segments": segments,
        "softmax_segm_output": torch.empty((rows, heads, segments, padded), dtype=torch.float32, device=device),
        "softmax_segm_max": torch.empty((rows, heads, segments), dtype=torch.float32, device=device),
        "softmax_segm_expsum": torch.empty((rows, heads, segments), dtype=torch.float32, device=device),
    }


def _known_unified() -> Parameters:
    features = {name for names in _FEATURE_ARGUMENTS.values() for name in names}
    others = ("max_seqlen_q", "max_seqlen_k", "causal", "kv_quant_mode", "num_segments", "tile_size")
    return frozenset(_REQUIRED | features | {*others, *_SCRATCH})


@dataclass(frozen=True)
class Family:
    """One ABI: how to recognise it, what it promises, and how to call it."""

    fits: Callable[[Signature], str]
    domain: Callable[[Signature], Domain]
    arguments: Callable[[Signature, AttentionCase, AttentionTensors], Arguments]


FAMILIES: Final[dict[Abi, Family]] = {"unified": Family(fits_unified, unified_domain, unified_arguments)}
"""Every ABI by its name on the command line."""
