"""Property-based correctness and fuzzing harness for Triton paged-attention kernels.

``verify`` fuzzes a kernel and ``fuzz`` makes a fuzz test of one (``fuzz_attn.api``). ``FuzzAttnError`` is the base of
all errors (``fuzz_attn.errors``). ARCHITECTURE.md describes the packages.
"""

from fuzz_attn.api import fuzz, verify
from fuzz_attn.errors import FuzzAttnError

__all__ = ["FuzzAttnError", "fuzz", "verify"]
