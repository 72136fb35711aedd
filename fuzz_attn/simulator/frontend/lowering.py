"""From a `@triton.jit` function and the types of its arguments to the text of its TTIR, without a GPU.

Arguments are typed as Triton types them, but an integer that is 1 is not made a constant and divisibility by 16
is not noted: both only let the compiler write faster code, and would multiply the number of programs to lower.
A kernel that needs the constant 1 to compile (a shape, a `static_assert`) raises `LoweringError`.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import warnings
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from fuzz_attn.errors import LoweringError
from fuzz_attn.simulator.frontend.interpreted import interpreted_functions_accepted

_TARGET = ("cuda", 90, 32)

TORCH_TYPES: dict[torch.dtype, tuple[str, str]] = {
    torch.bool: ("i1", "i1"),
    torch.int8: ("i8", "i8"),
    torch.uint8: ("u8", "i8"),
    torch.int16: ("i16", "i16"),
    torch.uint16: ("u16", "i16"),
    torch.int32: ("i32", "i32"),
    torch.uint32: ("u32", "i32"),
    torch.int64: ("i64", "i64"),
    torch.uint64: ("u64", "i64"),
    torch.float16: ("fp16", "f16"),
    torch.bfloat16: ("bf16", "bf16"),
    torch.float32: ("fp32", "f32"),
    torch.float64: ("fp64", "f64"),
    torch.float8_e4m3fn: ("fp8e4nv", "f8E4M3FN"),
    torch.float8_e5m2: ("fp8e5", "f8E5M2"),
}
"""For each torch type the name in a kernel's signature and the element type in the IR."""

SCALAR_TYPES: dict[str, np.dtype[Any]] = {
    "u1": np.dtype(np.bool_),
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "fp16": np.dtype(np.float32),
    "bf16": np.dtype(np.float32),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
}
"""The numpy type that holds a scalar argument."""


def scalar_type(value: object) -> str:
    """Return the name in a signature of a Python number, as Triton types it."""
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return "i32"
        return "i64" if value < 2**63 else "u64"
    if isinstance(value, float):
        return "fp32"
    raise LoweringError(f"{value!r} of {type(value)} is not an argument that the simulator can pass to a kernel")


@functools.lru_cache(maxsize=1)
def _backend() -> tuple[Any, Any, Any]:
    target = GPUTarget(*_TARGET)
    backend = make_backend(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The checks would only be asserts, which Triton leaves out too, but not what they compute.
        options = backend.parse_options({"sanitize_overflow": False})
    return target, backend, options


LOWERINGS_IN_A_CONTEXT: Final = 64
"""What one has seen stays in it, some 50 kB a kernel; to make one takes a tenth of the time of a lowering."""
_LOWERINGS: Final = itertools.count()


@functools.lru_cache(maxsize=1)
def _context(_: int) -> Any:
    """Return the compiler's context of an era."""
    context = ir.context()
    ir.load_dialects(context)
    _backend()[1].load_dialects(context)
    return context


atexit.register(_context.cache_clear)  # or Triton's bindings would complain that it was never given back


def lower(function: Any, signature: Mapping[str, object], constants: Mapping[tuple[int, ...], Any]) -> str:
    """Return the TTIR text of a JITFunction for a signature, which says "constexpr" where `constants` has a value.

    A constant is found by the number of its parameter and, within tuples, the numbers of the elements.
    Raises LoweringError with the front end's message.
    """
    target, backend, options = _backend()
    context = _context(next(_LOWERINGS) // LOWERINGS_IN_A_CONTEXT)
    source = ASTSource(function, signature=dict(signature), constexprs=dict(constants))
    implementation = backend.get_codegen_implementation(options)
    try:
        with interpreted_functions_accepted():
            module = source.make_ir(target, options, implementation, backend.get_module_map(), context)
    except Exception as error:
        raise LoweringError(f"Triton cannot lower {function.__name__}: {error}") from error
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    module = stages["ttir"](module, {})
    text: str = module.str() if hasattr(module, "str") else str(module)
    return text
