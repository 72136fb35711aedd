"""The compile stage of a run on a GPU: it compiles the kernels of the next rounds while shards judge cases.

`rounds` says in files which rounds are ready. `rehearsal` finds the kernels of a round, and `pool` compiles them.
`compiler` is the process that does both, and `stage` its parent's end.
"""
