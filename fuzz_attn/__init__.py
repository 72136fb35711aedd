"""Property-based correctness and fuzzing harness for Triton paged-attention kernels.

``fuzz`` makes a fuzz test of a kernel (``fuzz_attn.api``), ``FuzzAttnError`` is the base of all errors
(``fuzz_attn.errors``). ARCHITECTURE.md describes the packages.
"""

from fuzz_attn.api import fuzz
from fuzz_attn.errors import FuzzAttnError

__all__ = ["FuzzAttnError", "fuzz"]
