"""Code generation: from a parsed kernel to numpy source over the whole grid.

`generator` makes the program of a kernel, `program` is what comes of it. `operations` holds the handlers that emit each
kind of operation. They share `emitter` (names and placement), `elementwise`, `tracking` (value ranges), `coverage`
(records of masks), `accesses` and `rows` (memory), `carried` (values of loops and branches), and `blocks` (branches
between the blocks of a function).

The generated code is a `tree` of expressions and statements, in `regions` that run together. `terms` are the variables
and numbers that hold a value of the IR. `namespace` is the table of all that generated code may call.
"""
