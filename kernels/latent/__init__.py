"""Kernels of decode over a latent cache (MLA), where each value is the first elements of its key.

`splits.py` has both stages: the attention of a split of the keys, and the merge of all splits. `contract.py` checks.
"""
