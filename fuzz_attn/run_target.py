"""The test file behind ``fuzz-attn run``: one fuzz test, whose target comes from the options."""

from fuzz_attn.testing import fuzz

test_target = fuzz("unified")
