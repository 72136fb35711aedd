"""Parts shared by the kernels of all families.

On the device: `rows` (and their sequences), `paged_cache`, `scores` (and masks), `softmax`, `query_blocks` (the loop
over tiles of keys) and `outputs`; `extend_kernel` (keys in lists of slots, masks of several kinds) and `splits` (of the
keys, with their merge) serve some families. On the host: `contract` (argument checks), `launch` (sizes of blocks and
tiles), `arguments` (what kernels take, and what they are compiled for), and `split_call` (a call over split caches).
"""
