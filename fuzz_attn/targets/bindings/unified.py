"""The unified family. Names on the left are the published signature's, on the right the glossary's."""

from __future__ import annotations

from typing import Final

import torch

from fuzz_attn.case.parts import LaunchHints, LaunchPath
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.targets.bindings.binding import Arguments, Binding, Signature

_SCRATCH: Final = (
    "seq_threshold_3D",
    "num_par_softmax_segments",
    "softmax_segm_output",
    "softmax_segm_max",
    "softmax_segm_expsum",
)


def _arguments(tensors: AttentionTensors) -> Arguments:
    """Return all keyword arguments of one unified call but the scratch."""
    window = (tensors.window - 1, 0) if tensors.window else (-1, -1)
    return {
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
        "q_descale": _unless_one(tensors.q_scale),
        "k_descale": tensors.k_scale,
        "v_descale": tensors.v_scale,
        "alibi_slopes": tensors.alibi_slopes,
        "qq_bias": tensors.qq_bias,
        "sinks": tensors.sinks,
        "output_scale": tensors.out_scale,
        "kv_quant_mode": int(tensors.key_cache.dtype.itemsize == 1),
        **_hints(tensors.launch),
    }


def _unless_one(scale: torch.Tensor | None) -> torch.Tensor | None:
    """Return the scale, None where it changes nothing: most published versions refuse to be given one for q."""
    return None if scale is None or float(scale) == 1.0 else scale


def _hints(launch: LaunchHints) -> Arguments:
    """Return this project's own launch hints: how many segments (0 is the 2D kernel) and keys in a tile."""
    segments = {"auto": None, "2d": 0, "3d": launch.num_segments or 4}[launch.path]
    return {"num_segments": segments, "tile_size": launch.tile_size or None}


def _scratch(tensors: AttentionTensors) -> Arguments:
    """Return the scratch by which versions since December 2025 are asked for the 3D kernel, or five times None."""
    if tensors.launch.path != "3d":
        return dict.fromkeys(_SCRATCH)
    rows, heads, head_size = tensors.query.shape
    segments = tensors.launch.num_segments or 4
    padded = 1 << (head_size - 1).bit_length()
    device = tensors.query.device
    return {
        "seq_threshold_3D": len(tensors.query_lens),
        "num_par_softmax_segments": segments,
        "softmax_segm_output": torch.empty((rows, heads, segments, padded), dtype=torch.float32, device=device),
        "softmax_segm_max": torch.empty((rows, heads, segments), dtype=torch.float32, device=device),
        "softmax_segm_expsum": torch.empty((rows, heads, segments), dtype=torch.float32, device=device),
    }


def _paths(signature: Signature) -> tuple[LaunchPath, ...]:
    return ("2d", "3d") if all(name in signature.names for name in _SCRATCH) else ("auto",)


UNIFIED: Final = Binding(
    family="unified",
    required=frozenset(("q", "k", "v", "out", "cu_seqlens_q", "seqused_k", "softmax_scale", "block_table")),
    known=frozenset(
        ("max_seqlen_q", "max_seqlen_k", "causal", "kv_quant_mode", "num_segments", "tile_size", *_SCRATCH)
    ),
    feature_arguments={
        "window": ("window_size",),
        "softcap": ("softcap",),
        "alibi": ("alibi_slopes",),
        "qq_bias": ("qq_bias",),
        "sinks": ("sinks",),
        "fp8_kv": ("k_descale", "v_descale"),
        "fp8_q": ("q_descale", "k_descale", "v_descale"),
        "fp8_out": ("output_scale",),
    },
    arguments=_arguments,
    late=frozenset(("kv_quant_mode", "num_segments", "tile_size", *_SCRATCH)),
    scratch=_scratch,
    scratch_names=frozenset(_SCRATCH),
    # Published versions compute fp8 queries in ways that differ, so a target must declare them.
    undeclared=frozenset(("fp8_q",)),
    paths=_paths,
)
"""`unified_attention`: prefill and decode in one launch."""
