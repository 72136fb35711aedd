"""Kernels of the unified family."""
