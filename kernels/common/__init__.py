"""Parts shared by the kernels of all families.

On the device: `sequences`, `rows`, `masks`, `paged_cache`, `scores`, `softmax`, `query_blocks` (the loop over tiles of
keys) and `outputs`. On the host: `contract` (argument checks), `launch` (sizes of blocks and tiles),
`arguments`, and `variant` (what a kernel is compiled for).
"""
