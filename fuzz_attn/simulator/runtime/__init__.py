"""The runtime: what generated code calls while it runs.

`memory` loads and stores, with `columns` for columns that lie apart, and `atomics` updates. `arithmetic`, `select`,
`tiles` and `float_formats` compute. `lanes` follows programs through branches and loops. `ranges` finds 32-bit
overflow. `heap` keeps freed memory in the process, and `denormals` denormal numbers in a launch.
"""
