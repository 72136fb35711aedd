"""The compile stage of a run on a GPU: it compiles the kernels of the next rounds while shards judge cases.

`rounds` says in files which rounds are ready. `rehearsal` finds the kernels of a round, `compiler` is the process that
compiles them, and `stage` its parent's end.
"""
