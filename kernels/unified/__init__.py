"""The unified family: its two kernels, the merge of segments, and the host code of its launcher.

On the device: `kernel_2d`, `kernel_3d`, `blocks` (shared by the two) and `segments` (the merge). On the host: `call`.
"""
