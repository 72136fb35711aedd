"""Calls of the four published interfaces: the arguments have the same bits as before bindings became data."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import pytest
import torch

from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.families import Family
from fuzz_attn.case.parts import DTypes, HeadLayout, LaunchHints, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.recipes import AlibiRecipe, QQBiasRecipe, SinkRecipe
from fuzz_attn.inputs.storage import storage_bytes
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.targets.loading import as_target

SCRATCH: Final = "seq_threshold_3D=None, num_par_softmax_segments=None, softmax_segm_output=None, "
MORE_SCRATCH: Final = "softmax_segm_max=None, softmax_segm_expsum=None"
SIGNATURES: Final[dict[Family, str]] = {
    "unified": "q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size, "
    f"block_table, softcap, q_descale, k_descale, v_descale, {SCRATCH}{MORE_SCRATCH}, alibi_slopes=None, qq_bias=None, "
    "sinks=None, output_scale=None, kv_quant_mode=0, num_segments=None, tile_size=None, mm_prefix_range=None",
    "paged": "query, output, key_cache, value_cache, block_table, seq_lens, query_start_loc=None, "
    "filter_by_query_len=False, output_scale=None, kv_cache_dtype='auto', k_scale=None, v_scale=None, "
    "alibi_slopes=None, sliding_window=None, sm_scale=None, sinks=None, tile_size=None",
    "context": "q, k, v, o, kv_cache_dtype, k_cache, v_cache, b_loc, b_start_loc, b_seq_len, max_seq_len, "
    "max_input_len, k_scale, v_scale, alibi_slopes=None, sliding_window=None, sm_scale=None, skip_decode=False, "
    "fp8_out_scale=None, sinks=None, is_block_table_ptr=False",
    "chunked": "query, key, value, output, kv_cache_dtype, key_cache, value_cache, block_table, query_start_loc, "
    "seq_lens, max_seq_len, max_query_len, k_scale, v_scale, alibi_slopes=None, sliding_window=None, sm_scale=None, "
    "output_scale=None, sinks=None",
}
FP8: Final = {
    "dtypes": DTypes(q="bfloat16", kv="float8_e4m3fn", out="float8_e5m2"),
    "scales": Scales(k=0.5, v=2.0, out=4.0),
}
PLAIN: Final = AttentionCase(
    sequences=(Sequence(1, 9), Sequence(1), Sequence(1, 20)),
    heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=2, head_size=16),
    pages=PageLayout(block_size=4, permuted=True, spare_blocks=1, extra_columns=2),
    softmax_scale=0.25,
)
CASES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "another scale": {"softmax_scale": 0.5},
    "window": {"window": 3, "strides": Strides(q_token=3, out_head=1, block_table=2, cache_slot=5)},
    "biases": {"alibi": AlibiRecipe(), "sinks": SinkRecipe(), "padded_tokens": 2},
    "fp8": FP8,
}
MORE: Final[dict[Family, dict[str, dict[str, Any]]]] = {
    "unified": {
        "ragged": {"sequences": (Sequence(3, 9), Sequence(0, 2)), "softcap": 2.5, "qq_bias": QQBiasRecipe()},
        "2d": {"launch": LaunchHints(path="2d", tile_size=32)},
        "3d": {"launch": LaunchHints(path="3d", num_segments=3)},
        "fp8 queries": {
            "dtypes": DTypes(q="float8_e4m3fn", kv="float8_e4m3fn", out="bfloat16"),
            "scales": Scales(q=0.5),
        },
    },
    "paged": {
        "filtered": {"filter_by_query_len": True, "sequences": (Sequence(3, 9), Sequence(1, 2))},
        "bytes": {**FP8, "uint8_cache": True},
    },
    "context": {
        "skips": {"filter_by_query_len": True, "sequences": (Sequence(3, 9), Sequence(1, 2))},
        "stale": {"stale_cache": True, "strides": Strides(new_token=2, new_head=1)},
        "bytes": {**FP8, "uint8_cache": True},
    },
    "chunked": {"ragged": {"sequences": (Sequence(3, 9), Sequence(1, 2))}, "bytes": {**FP8, "uint8_cache": True}},
}
DIGESTS: Final[dict[tuple[Family, bool], str]] = {
    ("unified", False): "c03b9e3b030c9c59",
    ("paged", False): "1bb0ae0bbe8b57c1",
    ("context", False): "81098ae0415de629",
    ("chunked", False): "be4a5e9f566c0144",
    ("unified", True): "9a2fb3305d5793cb",
    ("paged", True): "0c1b9303b92a79e8",
    ("context", True): "55811e14baa518f7",
    ("chunked", True): "f338b2007e750bfd",
}
"""The digests of all calls of each family, computed at commit 11efaf1."""


def recorder(parameters: str, calls: list[dict[str, Any]]) -> Any:
    """Return a function with the given parameters that appends the arguments of each call to a list."""
    names: dict[str, Any] = {"calls": calls}
    exec(f"def attend({parameters}): calls.append(dict(locals()))", names)
    return names["attend"]


def digest_of(arguments: dict[str, Any]) -> bytes:
    """Return a digest of the arguments: of all their memory, but of scratch only type and shape."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in sorted(arguments.items()):
        if not isinstance(value, torch.Tensor):
            digest.update(f"{name}={value!r};".encode())
            continue
        digest.update(f"{name}:{value.dtype}{tuple(value.shape)}{value.stride()}{value.storage_offset()};".encode())
        if not name.startswith("softmax_segm"):
            digest.update(storage_bytes(value).numpy().tobytes())
    return digest.digest()


@pytest.mark.parametrize("family", SIGNATURES)
@pytest.mark.parametrize("keywords", [False, True])
def test_arguments_have_the_same_bits(family: Family, keywords: bool) -> None:
    calls: list[dict[str, Any]] = []
    target = as_target(recorder("**given" if keywords else SIGNATURES[family], calls), "recorder", family)
    whole = hashlib.blake2b(digest_size=8)
    for changes in {**CASES, **MORE[family]}.values():
        target.run(materialise(replace(PLAIN, family=family, **changes)))
        whole.update(digest_of(calls[-1]["given"] if keywords else calls[-1]))
    assert whole.hexdigest() == DIGESTS[family, keywords]
