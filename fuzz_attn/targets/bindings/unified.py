"""The unified family: names of parameters are the published signature's, values have this project's names."""

from __future__ import annotations

from typing import Final

import torch

from fuzz_attn.case.families import UNPUBLISHED_FEATURES
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.targets.bindings.binding import Binding, Parameter, passed_scale

DEFAULT_SEGMENTS: Final = 4
"""Segments of a launch of the 3D kernel whose case names no number."""


def _window_size(tensors: AttentionTensors) -> tuple[int, int]:
    """Return how many keys a row sees to the left and to the right of its own, -1 for no limit."""
    right = (0 if tensors.window else -1) if tensors.form.window % 2 == 0 else (-1 if tensors.window else 0)
    return tensors.window - 1, right


def _q_descale(tensors: AttentionTensors) -> torch.Tensor | None:
    """Return the scale of q, None where it is 1: most published versions refuse to be given one."""
    scale = tensors.q_scale
    return None if scale is None or float(scale) == 1.0 else passed_scale(tensors, scale)


def _num_segments(tensors: AttentionTensors) -> int | None:
    """Return the hint of this project's launcher: None for its own choice, 0 for the 2D kernel."""
    launch = tensors.launch
    return {"auto": None, "2d": 0, "3d": launch.num_segments or DEFAULT_SEGMENTS}[launch.path]


def _seq_threshold(tensors: AttentionTensors) -> int | None:
    return len(tensors.query_lens) if tensors.launch.path == "3d" else None


def _scratch_segments(tensors: AttentionTensors) -> int | None:
    """Return the number of segments that the scratch has room for, None for the 2D kernel."""
    return tensors.launch.num_segments or DEFAULT_SEGMENTS if tensors.launch.path == "3d" else None


def _segment_outputs(tensors: AttentionTensors) -> torch.Tensor | None:
    head_size = tensors.query.shape[2]
    return _scratch(tensors, 1 << (head_size - 1).bit_length())


def _segment_scalars(tensors: AttentionTensors) -> torch.Tensor | None:
    return _scratch(tensors)


def _scratch(tensors: AttentionTensors, *columns: int) -> torch.Tensor | None:
    """Return uninitialised float32 scratch ``[num_tokens, num_query_heads, segments, *columns]`` of the 3D kernel."""
    segments = _scratch_segments(tensors)
    if segments is None:
        return None
    rows, heads, _ = tensors.query.shape
    return torch.empty((rows, heads, segments, *columns), dtype=torch.float32, device=tensors.query.device)


SCRATCH: Final = (
    Parameter("seq_threshold_3D", _seq_threshold, opt_in=True),
    Parameter("num_par_softmax_segments", _scratch_segments, opt_in=True),
    Parameter("softmax_segm_output", _segment_outputs, opt_in=True),
    Parameter("softmax_segm_max", _segment_scalars, opt_in=True),
    Parameter("softmax_segm_expsum", _segment_scalars, opt_in=True),
)
"""Published versions since December 2025 launch the 3D kernel when they are given these, the 2D kernel for None."""

UNIFIED: Final = Binding(
    family="unified",
    parameters=(
        Parameter("q", lambda tensors: tensors.query, required=True),
        Parameter("k", lambda tensors: tensors.key_cache, required=True),
        Parameter("v", lambda tensors: tensors.value_cache, required=True),
        Parameter("out", lambda tensors: tensors.output, required=True),
        Parameter("cu_seqlens_q", lambda tensors: tensors.query_start_loc, required=True),
        Parameter("max_seqlen_q", lambda tensors: tensors.max_query_len),
        Parameter("seqused_k", lambda tensors: tensors.seq_lens, required=True),
        Parameter("max_seqlen_k", lambda tensors: tensors.max_seq_len),
        Parameter("softmax_scale", lambda tensors: tensors.softmax_scale, required=True),
        Parameter("causal", lambda _: True),
        Parameter("window_size", _window_size, features=("window",)),
        Parameter("block_table", lambda tensors: tensors.block_table, required=True),
        Parameter("softcap", lambda tensors: tensors.softcap, features=("softcap",)),
        Parameter("q_descale", _q_descale, features=("fp8_q",)),
        Parameter("k_descale", lambda tensors: passed_scale(tensors, tensors.k_scale), features=("fp8_kv", "fp8_q")),
        Parameter("v_descale", lambda tensors: passed_scale(tensors, tensors.v_scale), features=("fp8_kv", "fp8_q")),
        Parameter("alibi_slopes", lambda tensors: tensors.alibi_slopes, features=("alibi",)),
        Parameter("qq_bias", lambda tensors: tensors.qq_bias, features=("qq_bias",)),
        Parameter("sinks", lambda tensors: tensors.sinks, features=("sinks",)),
        Parameter("output_scale", lambda tensors: tensors.out_scale, features=("fp8_out",)),
        Parameter("kv_quant_mode", lambda tensors: int(tensors.key_cache.dtype.itemsize == 1), opt_in=True),
        Parameter("num_segments", _num_segments, opt_in=True),
        Parameter("tile_size", lambda tensors: tensors.launch.tile_size or None, opt_in=True),
        *SCRATCH,
    ),
    # Published versions differ in how they compute fp8 queries, so a target must declare them.
    undeclared=UNPUBLISHED_FEATURES | {"fp8_q"},
    path_parameters=tuple(parameter.name for parameter in SCRATCH),
)
"""`unified_attention`: prefill and decode in one launch."""
