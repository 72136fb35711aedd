"""The harness on this project's own kernels: a short campaign at every run of the suite."""

from fuzz_attn import fuzz

test_unified = fuzz("unified", max_cases=300)
