"""The test file behind ``fuzz-attn run``: one fuzz test, whose target comes from the options."""

from fuzz_attn.api import fuzz

test_target = fuzz("unified")
