"""Whole-grid execution of Triton kernels on a CPU, with sanitizers. Knows nothing of attention.

    simulator = Simulator(coverage=True)  # keeps programs between sessions
    with simulate(simulator) as session:
        target(**tensors)
    session.findings, session.unsupported, dict(simulator.masks.items())

The way of a launch: `session` replaces Triton's own and runs it, `simulator` finds its program. To make one,
`fuzz_attn.ttir` types the arguments, lowers the kernel to TTIR with Triton's own front end and parses it to a tree;
`codegen` makes numpy source of the tree, which covers the whole grid. `disk_cache` keeps programs. `launch_arguments`
turns tensors into memories, `execution` runs the program, `undefined_probes` run it again with other numbers where some
are undefined, `runtime` is what generated code calls, and `sanitizers` check each access. Private names of torch are in
`torch_compat`.
"""
