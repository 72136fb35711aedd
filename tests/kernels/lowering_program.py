"""A program that lowers the kernels to TTIR for Hopper and prints facts about it as JSON.

It replaces Triton's launch, so it lowers the launchers' real arguments. It needs no GPU. It runs in a separate process,
because Triton must not be imported with TRITON_INTERPRET set.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from fuzz_attn.kernels.chunked_prefill import chunked_prefill_paged_decode
from fuzz_attn.kernels.context_attention import context_attention_fwd
from fuzz_attn.kernels.paged_attention import paged_attention_decode
from fuzz_attn.kernels.unified_attention import unified_attention

TARGET = GPUTarget("cuda", 90, 32)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FEATURES = {"window": 7, "softcap": 5.0, "alibi": True, "qq_bias": True, "sinks": True}

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain_3d": {"num_segments": 3},
    "features": FEATURES,
    "features_3d": FEATURES | {"num_segments": 16},
    "bfloat16": {"q_dtype": torch.bfloat16, "query_len": 40},
    "float32": {"q_dtype": torch.float32, "head_size": 80},
    "fp8_cache": {"q_dtype": torch.bfloat16, "kv_dtype": E4M3, "out_dtype": E4M3, "num_segments": 5},
    "fp8_q": FEATURES | {"q_dtype": E4M3, "kv_dtype": E5M2, "out_dtype": torch.bfloat16},
    "odd_sizes": FEATURES | {"head_size": 1, "num_query_heads": 34, "block_size": 17},
    "large": {"head_size": 256, "num_query_heads": 128, "block_size": 544, "tile_size": 128},
    "other_numbers": FEATURES
    | {"window": 130, "softcap": 7.5, "num_seqs": 1, "block_table_width": 1, "qq_bias_cols": 16},
}

SPLIT_FEATURES = {"window": 7, "alibi": True, "sinks": True}

DECODE_CASES: dict[str, dict[str, Any]] = {
    "decode_plain": {},
    "decode_filtered": {"filtered": True},
    "decode_features": SPLIT_FEATURES | {"filtered": True},
    "decode_bfloat16": {"q_dtype": torch.bfloat16, "tile_size": 16, "head_size": 16},
    "decode_float32": {"q_dtype": torch.float32, "head_size": 80, "x": 4},
    "decode_fp8_cache": SPLIT_FEATURES | {"q_dtype": torch.bfloat16, "kv_dtype": E4M3, "out_dtype": E4M3, "x": 16},
    "decode_e5m2_bytes": {"kv_dtype": torch.uint8, "kv_cache_dtype": "fp8_e5m2", "out_dtype": E5M2, "x": 16},
    "decode_odd_sizes": SPLIT_FEATURES | {"head_size": 1, "x": 1, "num_query_heads": 34, "block_size": 3},
    "decode_large": {"head_size": 256, "num_query_heads": 128, "block_size": 544, "tile_size": 128},
    "decode_other_numbers": SPLIT_FEATURES | {"filtered": True, "window": 130, "num_seqs": 1, "block_table_width": 1},
}

CONTEXT_CASES: dict[str, dict[str, Any]] = {
    "context_plain": {},
    "context_skipping": {"skipping": True},
    "context_features": SPLIT_FEATURES | {"skipping": True},
    "context_bfloat16": {"q_dtype": torch.bfloat16, "tile_size": 16, "head_size": 16, "query_len": 90},
    "context_float32": {"q_dtype": torch.float32, "head_size": 80, "x": 4},
    "context_fp8_cache": SPLIT_FEATURES | {"q_dtype": torch.bfloat16, "kv_dtype": E4M3, "out_dtype": E4M3, "x": 16},
    "context_e5m2_bytes": {"kv_dtype": torch.uint8, "kv_cache_dtype": "fp8_e5m2", "out_dtype": E5M2, "x": 16},
    "context_odd_sizes": SPLIT_FEATURES | {"head_size": 1, "x": 1, "num_query_heads": 34, "block_size": 3},
    "context_large": {"head_size": 256, "block_size": 544, "tile_size": 128, "query_len": 64},
    "context_other_numbers": SPLIT_FEATURES | {"skipping": True, "window": 130, "num_seqs": 1, "block_table_width": 1},
}

lowered: dict[str, dict[str, Any]] = {}


def lower(kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **kwargs: Any) -> None:
    """Replace JITFunction.run: record facts about the kernel's TTIR and its compile key instead of launching it."""
    backend = make_backend(TARGET)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialisation, options = bind(*args, **kwargs)
    parsed, signature, constants, _ = kernel._pack_args(backend, kwargs, bound, specialisation, options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(kernel, signature, constants, {})
    module = source.make_ir(
        TARGET, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context
    )
    text = str(module)
    lowered[kernel.__name__] = {
        "dots": text.count("tt.dot "),
        "verified": module.verify(),
        "key": repr([signature, sorted(constants.items())]),
    }


def launch(
    *,
    q_dtype: torch.dtype = torch.float16,
    kv_dtype: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    query_len: int = 5,
    num_seqs: int = 2,
    num_query_heads: int = 8,
    num_kv_heads: int = 2,
    head_size: int = 128,
    block_size: int = 16,
    block_table_width: int = 8,
    window: int = 0,
    softcap: float = 0.0,
    alibi: bool = False,
    qq_bias: bool = False,
    qq_bias_cols: int = 5,
    sinks: bool = False,
    num_segments: int = 0,
    tile_size: int | None = None,
) -> None:
    """Call the launcher on tensors of the given kind; their values do not matter."""
    kv_dtype, out_dtype = kv_dtype or q_dtype, out_dtype or q_dtype
    num_tokens = query_len * num_seqs
    one = torch.ones(1)
    unified_attention(
        torch.zeros(num_tokens, num_query_heads, head_size, dtype=q_dtype),
        torch.zeros(8, block_size, num_kv_heads, head_size, dtype=kv_dtype),
        torch.zeros(8, block_size, num_kv_heads, head_size, dtype=kv_dtype),
        torch.zeros(num_tokens, num_query_heads, head_size, dtype=out_dtype),
        torch.arange(0, num_tokens + 1, query_len, dtype=torch.int32),
        query_len,
        torch.full((num_seqs,), 60, dtype=torch.int32),
        60,
        0.1,
        True,
        (window - 1, 0) if window else (-1, -1),
        torch.zeros(num_seqs, block_table_width, dtype=torch.int32),
        softcap,
        one if q_dtype.itemsize == 1 else None,
        one if kv_dtype.itemsize == 1 else None,
        one if kv_dtype.itemsize == 1 else None,
        alibi_slopes=torch.zeros(num_query_heads) if alibi else None,
        qq_bias=torch.zeros(query_len, qq_bias_cols) if qq_bias else None,
        sinks=torch.zeros(num_query_heads, dtype=torch.bfloat16) if sinks else None,
        output_scale=one if out_dtype.itemsize == 1 else None,
        num_segments=num_segments,
        tile_size=tile_size,
    )


def split_tensors(
    *,
    q_dtype: torch.dtype = torch.float16,
    kv_dtype: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    num_tokens: int = 2,
    num_query_heads: int = 8,
    num_kv_heads: int = 2,
    head_size: int = 128,
    block_size: int = 16,
    x: int = 8,
) -> tuple[torch.Tensor, ...]:
    """Query, output, key cache and value cache of the given kind; their values do not matter."""
    return (
        torch.zeros(num_tokens, num_query_heads, head_size, dtype=q_dtype),
        torch.zeros(num_tokens, num_query_heads, head_size, dtype=out_dtype or q_dtype),
        torch.zeros(8, num_kv_heads, head_size // x, block_size, x, dtype=kv_dtype or q_dtype),
        torch.zeros(8, num_kv_heads, head_size, block_size, dtype=kv_dtype or q_dtype),
    )


def launch_decode(
    *,
    num_seqs: int = 2,
    block_table_width: int = 8,
    window: int = 0,
    alibi: bool = False,
    sinks: bool = False,
    filtered: bool = False,
    tile_size: int | None = None,
    kv_cache_dtype: str = "auto",
    **kind: Any,
) -> None:
    """Call the launcher of paged decode on tensors of the given kind."""
    query, output, key_cache, value_cache = split_tensors(num_tokens=num_seqs, **kind)
    paged_attention_decode(
        query,
        output,
        key_cache,
        value_cache,
        torch.zeros(num_seqs, block_table_width, dtype=torch.int32),
        torch.arange(0, num_seqs + 1, dtype=torch.int32) if filtered else None,
        torch.full((num_seqs,), 60, dtype=torch.int32),
        torch.ones(1) if key_cache.itemsize == 1 else None,
        torch.ones(1) if key_cache.itemsize == 1 else None,
        alibi_slopes=torch.zeros(query.shape[1]) if alibi else None,
        sliding_window=window,
        output_scale=torch.ones(1) if output.itemsize == 1 else None,
        sinks=torch.zeros(query.shape[1], dtype=torch.bfloat16) if sinks else None,
        kv_cache_dtype=kv_cache_dtype,
        filter_by_query_len=filtered,
        tile_size=tile_size,
    )


def launch_context(
    *,
    query_len: int = 5,
    num_seqs: int = 2,
    block_table_width: int = 8,
    window: int = 0,
    alibi: bool = False,
    sinks: bool = False,
    skipping: bool = False,
    tile_size: int | None = None,
    kv_cache_dtype: str = "auto",
    **kind: Any,
) -> None:
    """Call the launcher of context attention on tensors of the given kind."""
    query, output, key_cache, value_cache = split_tensors(num_tokens=num_seqs * query_len, **kind)
    new = torch.zeros(query.shape[0], key_cache.shape[1], query.shape[2], dtype=query.dtype)
    context_attention_fwd(
        query,
        new,
        new.clone(),
        output,
        kv_cache_dtype,
        key_cache,
        value_cache,
        torch.zeros(num_seqs, block_table_width, dtype=torch.int32),
        torch.arange(0, query.shape[0] + 1, query_len, dtype=torch.int32),
        torch.full((num_seqs,), 95, dtype=torch.int32),
        95,
        query_len,
        torch.ones(1) if key_cache.itemsize == 1 else None,
        torch.ones(1) if key_cache.itemsize == 1 else None,
        alibi_slopes=torch.zeros(query.shape[1]) if alibi else None,
        sliding_window=window,
        skip_decode=skipping,
        fp8_out_scale=torch.ones(1) if output.itemsize == 1 else None,
        sinks=torch.zeros(query.shape[1], dtype=torch.bfloat16) if sinks else None,
        tile_size=tile_size,
    )


def launch_chunked(*, query_len: int) -> None:
    """Call the launcher of mixed batches."""
    query, output, key_cache, value_cache = split_tensors(num_tokens=2 * query_len)
    new = torch.zeros(query.shape[0], key_cache.shape[1], query.shape[2], dtype=query.dtype)
    chunked_prefill_paged_decode(
        query,
        new,
        new.clone(),
        output,
        "auto",
        key_cache,
        value_cache,
        torch.zeros(2, 8, dtype=torch.int32),
        torch.arange(0, 2 * query_len + 1, query_len, dtype=torch.int32),
        torch.full((2,), 60, dtype=torch.int32),
        60,
        query_len,
        None,
        None,
    )


LAUNCHES: tuple[tuple[Callable[..., None], dict[str, dict[str, Any]]], ...] = (
    (launch, CASES),
    (launch_decode, DECODE_CASES),
    (launch_context, CONTEXT_CASES),
    (launch_chunked, {"chunked": {"query_len": 5}, "chunked_decode": {"query_len": 1}}),
)


def main() -> None:
    """Lower every case."""
    JITFunction.run = lower
    results: dict[str, Any] = {}
    for launcher, cases in LAUNCHES:
        for name, case in cases.items():
            lowered.clear()
            launcher(**case)
            results[name] = dict(lowered)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
