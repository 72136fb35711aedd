"""Property-based correctness and fuzzing harness for Triton paged-attention kernels.

``verify`` fuzzes a kernel and ``fuzz`` makes a fuzz test of one. ``check`` judges one case, and ``cases`` is a strategy
of cases, for tests with Hypothesis (all in ``fuzz_attn.api``). ``FuzzAttnError`` is the base of all errors
(``fuzz_attn.errors``). ARCHITECTURE.md describes the packages.
"""

from fuzz_attn.api import cases, check, fuzz, verify
from fuzz_attn.errors import FuzzAttnError, KernelError

__all__ = ["FuzzAttnError", "KernelError", "cases", "check", "fuzz", "verify"]
