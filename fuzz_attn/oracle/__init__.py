"""The oracle: the exact output, the error bound, and the comparison of an output with both.

- ``reference`` computes both for a batch, block by block (``row_blocks``): ``logits`` the exact scores, their errors
  and the rows without errors, ``error_bound`` the weights and what reaches the output, from the ``roundings`` that a
  target's ``rounding_model`` allows.
- ``emulation`` computes with the roundings of a model to nearest, which shows what errors a target probably makes.
- ``comparison`` compares an output with the reference. The ``verdict`` holds the result.
"""
