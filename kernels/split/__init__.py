"""Kernels over split caches: paged decode and context attention, and the host code of their launchers.

On the device: `paged_kernel` and `context_kernel`. On the host: `call`.
"""
