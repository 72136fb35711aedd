"""Bindings in action: which role each parameter of a target has, and the calls that follow.

``roles`` is the table of roles with the names that kernels give them, ``values`` computes their arguments.
``published`` are the interfaces of the four families, ``matching`` finds the binding of a signature, ``promises`` the
domain that follows from it, and ``call`` makes the calls. A binding itself is data: :mod:`fuzz_attn.bindings`.
"""
