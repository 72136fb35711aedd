"""CUDA's Multi-Process Service (MPS): processes that share a GPU through it run at the same time, not in turn.

`mps_service` starts it for a run, `guardian` is the process that ends it, and `gpu_sharing` talks to it and says with
which environment a process uses it.
"""
