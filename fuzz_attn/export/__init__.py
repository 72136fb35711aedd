"""Export: a counterexample as a script that needs torch and the target only.

``script`` makes the script and its text, ``recorded_calls`` holds the calls of a case, what their outputs must be, and
the file of large tensors beside the script. ``runtime`` has the functions that every script contains.
"""
