"""Bindings: how a target is called, as data, and the calls that follow from it.

A ``binding`` gives each parameter of a signature a role, and says layouts and conventions; it imports no torch.
``roles`` is the table of roles with the names that kernels give them, ``values`` computes their arguments.
``matching`` finds the binding of a signature, with the published interfaces of all families, ``promises`` the
domain that follows from it. ``call`` makes the calls.

Nothing here runs a target: what names do not tell, :mod:`fuzz_attn.calibration` settles by calling one, above targets.
"""
