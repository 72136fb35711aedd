"""Property-based correctness and fuzzing harness for Triton paged-attention kernels."""

from fuzz_attn.api import fuzz
from fuzz_attn.errors import FuzzAttnError

__all__ = ["FuzzAttnError", "fuzz"]
