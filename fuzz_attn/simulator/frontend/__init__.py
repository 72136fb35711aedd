"""The front end: from a Triton kernel and its arguments to a tree of operations.

`binding` types the arguments of a launch, `lowering` gets the text of the kernel's TTIR from Triton, with the help of
`interpreted` for kernels that were decorated for the interpreter, and `parser` makes the tree of it that `ir` defines.
`locations` resolves source lines, and `rejections` says why the compiler rejects a kernel.
"""
