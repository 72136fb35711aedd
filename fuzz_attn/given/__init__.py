"""Given: cases and verdicts for a user's own tests with Hypothesis.

`narrowed_cases` makes the strategy of ``fuzz_attn.cases``, `kernel_check` judges one case for ``fuzz_attn.check``,
`kernel_judge` loads each kernel once.
"""
