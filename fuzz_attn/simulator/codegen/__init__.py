"""Code generation: from a parsed kernel to numpy source over the whole grid.

`generator` makes the program of a kernel, block by block; `program` is what comes of it, with all names that it may
use. `operations` holds the handlers that emit each kind of operation. They share `emitter` (names and placement, value
ranges, records of masks), `access_plans` (memory) and `carried` (values of loops and branches).

The generated code is a tree of expressions and statements (`source_tree`). `terms` are the variables and numbers that
hold a value of the IR, in regions that run together, and the bounds of integers.
"""
