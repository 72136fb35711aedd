"""Kernels of decode over a cache of slots that a list of indices names.

`token_kernels.py` has both stages: the attention of a split of the keys, and the merge of all splits. `contract.py`
checks.
"""
