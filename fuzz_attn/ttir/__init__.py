"""Triton's front end and its IR, read and typed; knows nothing of attention, and of how a kernel runs.

`lowering` types the arguments of a launch and gets the text of the kernel's TTIR from Triton, and `ir`
makes a tree of it. What the tree says of a kernel is read by `value_graph` (where values come from) and
`kernel_arithmetic` (how it rounds).

Private names of Triton are here and nowhere else: `triton_compat` has those of its front end and launches,
`compiler_compat` those of compiling without a launch, `interpreter_compat` those of its interpreter.
"""
