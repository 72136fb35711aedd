"""Whole-grid execution of Triton kernels on a CPU, with sanitizers. Knows nothing of attention.

    simulator = Simulator(coverage=True)  # keeps programs between sessions
    with simulate(simulator) as session:
        target(**tensors)
    session.findings, session.unsupported, dict(simulator.masks.items())

The way of a launch: `session` replaces Triton's own and runs it, `simulator` finds its program. To make one,
`fuzz_attn.ttir` types the arguments, lowers the kernel to TTIR with Triton's own front end and parses it to a tree;
`codegen` makes numpy source of the tree, which covers the whole grid. `disk_cache` keeps programs. `execution` runs
the program, and `runtime` is what generated code calls. Of the sanitizers, `access_checks` has bounds, uninitialised
reads and races, `order` checks loads after stores within a program, and `session` looks for results that undefined
numbers change; `codegen.program` records how each mask came out. `recorder` makes programs that keep a digest of each
value, and compares those of two kernels. Private names of torch are in `torch_compat`.
"""
