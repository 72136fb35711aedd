"""Property-based correctness and fuzzing harness for Triton paged-attention kernels."""

from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.testing import fuzz

__all__ = ["FuzzAttnError", "fuzz"]
