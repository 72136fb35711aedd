"""Compiles kernels without a GPU, then launches them up to Triton's own compiler; prints JSON for the test beside it.

It runs in a process of its own, because kernels must not be decorated for the interpreter. Its arguments are a family
and the number of the first of some rounds.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import contextlib
import json
import os
import sys
from typing import Any, Final

os.environ.pop("TRITON_INTERPRET", None)

import numpy as np
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.compiler import CompilationError

from fuzz_attn.backends.compiler import CompilerBackend
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.parts import LaunchHints, Sequence
from fuzz_attn.engine.rehearsal import Rehearsal, known_kernels
from fuzz_attn.errors import NotCompiledInterrupt
from fuzz_attn.inputs import storage
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.operations.attention.drawing import shared_round
from fuzz_attn.targets.gpu_answers import gpu_answers
from fuzz_attn.targets.loading import load_target
from fuzz_attn.ttir.compiler_compat import WantedKernel, only_compiled_kernels

GPU_ALIGNMENT: Final = 512
"""Bytes to which CUDA's allocator aligns."""
ROUNDS: Final = 3
CASES: Final = 20
"""Of each round."""

on_cpu = storage._flat
target = load_target(sys.argv[1])
domain = target.domain.in_memory()
rounds = [shared_round(domain, 3, int(sys.argv[2]) + each) for each in range(ROUNDS)]
backend = CompilerBackend(gpu_answers)


def as_on_gpu(memory: Any, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return what ``storage._flat`` returns, at an address as CUDA's allocator gives it."""
    flat = on_cpu(memory, dtype, device).view(torch.uint8)
    whole = np.empty(flat.numel() + GPU_ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % GPU_ALIGNMENT
    return torch.from_numpy(whole[start : start + flat.numel()]).copy_(flat).view(dtype)


rehearsal = Rehearsal(target, backend, domain)


def rehearsed() -> dict[str, WantedKernel]:
    cases = [case for shared in rounds for case in rehearsal.cases_of(shared, CASES)]
    assert known_kernels(cases)
    return {str(kernel.key): kernel for case in cases for kernel in case.kernels}


def cases_of_one_kernel() -> list[tuple[WantedKernel, AttentionCase]]:
    """Return kernels, each with a case that launches no other one. They are small: a large one compiles for seconds."""
    small = AttentionCase((Sequence(1, 3),), target.family)
    found = []
    for case in (small, replace(small, window=2)):
        with backend.running():
            target.run(materialise(case))
        (kernel,) = backend.wanted()
        found.append((kernel, case))
    return found


def refuse() -> None:
    raise NotCompiledInterrupt


def launched(kernel: WantedKernel, case: AttentionCase) -> object:
    """Launch a case as on a GPU; return whether Triton finds its kernel on disk. No GPU is there to run it."""
    kernel.key[0].device_caches.clear()  # type: ignore[attr-defined] # a JITFunction, which forgets its kernels
    found: list[bool] = []
    knobs.compilation.listener = lambda **event: found.append(event["cache_hit"])
    try:
        with gpu_answers(), only_compiled_kernels(refuse), contextlib.suppress(AttributeError):
            target.run(materialise(case))
    except NotCompiledInterrupt:
        return "refused"
    finally:
        knobs.compilation.listener = None
    return found


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=[])
@triton.jit
def tuned(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)


def kernels_of_an_autotuner() -> int:
    with backend.running():
        tuned[(1,)](torch.empty(32))
    return len(backend.wanted())


def with_two_warps() -> list[object]:
    """Return whether a case that chooses options needs other kernels, and the options that one is compiled with."""
    case = AttentionCase((Sequence(1, 3),), target.family)
    chosen = replace(case, launch=LaunchHints(num_warps=2, num_stages=1))
    own, other = ([*rehearsal.rehearsed(each, None).kernels] for each in (case, chosen))
    metadata = other[0]._compile().metadata
    return [{each.key for each in own}.isdisjoint(each.key for each in other), metadata.num_warps, metadata.num_stages]


@triton.jit
def wide_kernel(x_ptr, SIZE: tl.constexpr):
    tl.static_assert(SIZE >= 16)
    tl.store(x_ptr + tl.arange(0, SIZE), 0.0)


def refused_to_lower() -> list[bool]:
    """Return whether the front end refuses a block of 8 elements and one of 16."""
    refused = []
    for size in (8, 16):
        with backend.running():
            wide_kernel[(1,)](torch.empty(size), size)
        (kernel,) = backend.wanted()
        try:
            kernel.lower()
        except CompilationError:
            refused.append(True)
        else:
            refused.append(False)
    return refused


def main() -> None:
    """Print what is compiled, found and refused."""
    kernels = rehearsed()
    storage._flat = as_on_gpu
    again = rehearsed()
    chosen = cases_of_one_kernel()
    figures = {
        "kernels": len(kernels),
        "same keys": kernels.keys() == again.keys(),
        "autotuned": kernels_of_an_autotuner(),
        "with options": with_two_warps(),
        "refused to lower": refused_to_lower(),
        "compiled": [kernel.compile() for kernel, _ in chosen[:1]],
        "found": [launched(*each) for each in chosen],
        "compiled again": [kernel.compile() for kernel, _ in chosen[:1]],
    }
    print(json.dumps(figures))


main()
