"""A short campaign on this project's own kernels of each family."""

from fuzz_attn import fuzz

test_unified = fuzz("unified", max_cases=300)
test_paged = fuzz("paged", max_cases=200)
test_context = fuzz("context", max_cases=200)
test_chunked = fuzz("chunked", max_cases=200)
