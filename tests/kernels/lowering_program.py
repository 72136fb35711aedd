"""A program for a process of its own: lowers the unified kernels to TTIR for Hopper and prints facts about it as JSON.

It catches Triton's launches, so the launcher's own arguments are what is lowered. No GPU takes part. Triton must not
have been imported with TRITON_INTERPRET set, hence the process.
"""

import json
import sys
from typing import Any

import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, mangle_type

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

lowered: dict[str, dict[str, Any]] = {}


def lower(kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **kwargs: Any) -> None:
    """Stand in for JITFunction.run: keep the kernel's TTIR and its compile key instead of launching it."""
    names = [parameter.name for parameter in kernel.params]
    options = {name: value for name, value in kwargs.items() if name not in names}
    bound = dict(zip(names, args, strict=False)) | {name: value for name, value in kwargs.items() if name in names}
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    for parameter in kernel.params:
        value = bound[parameter.name]
        is_one = type(value) is int and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or is_one:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        else:
            signature[parameter.name] = mangle_type(value)
    backend = make_backend(TARGET)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    parsed = backend.parse_options(options)
    source = ASTSource(kernel, signature, constants, {})
    module = source.make_ir(
        TARGET, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context
    )
    text = str(module)
    lowered[kernel.__name__] = {
        "dots": text.count("tt.dot "),
        "verified": module.verify(),
        "key": json.dumps([signature, {name: str(value) for name, value in constants.items()}], sort_keys=True),
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


def main() -> None:
    """Lower every case."""
    JITFunction.run = lower
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        lowered.clear()
        launch(**case)
        results[name] = dict(lowered)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
