"""Kernels over split caches: paged decode and context attention."""
