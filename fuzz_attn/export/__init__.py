"""Export: a counterexample as a script that needs torch and the target only.

``exporting`` makes the script. ``recorded_calls`` holds the calls of a case, ``expectations`` what their outputs must
be, ``target_source`` how a script imports the target, ``script`` the text of the script, and ``runtime`` the functions
that every script contains. ``safetensors`` writes large tensors to a file beside the script.
"""
