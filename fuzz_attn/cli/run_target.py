"""The test file that ``fuzz-attn run`` gives to pytest: one fuzz test, whose target the options replace."""

from fuzz_attn.api import fuzz

test_target = fuzz("unified")
