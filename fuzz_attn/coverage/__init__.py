"""Mask coverage: which masks and branches of the kernels a campaign saw true, false and mixed."""
