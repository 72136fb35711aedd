"""Changes of a kernel's IR.

``operators`` yields the changes of one operation, ``rewriting`` copies a kernel with one of them, ``mutants`` names
them across compile keys, and ``probes`` counts whether a change made any difference.
"""
