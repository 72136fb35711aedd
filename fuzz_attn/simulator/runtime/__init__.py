"""The runtime: what generated code calls while it runs.

`memory` loads, stores and updates. `elementwise`, `tiles` and `float_formats` compute. `lanes` follows programs through
branches and loops. `ranges` finds 32-bit overflow, `hints` checks what a kernel promises.
"""
