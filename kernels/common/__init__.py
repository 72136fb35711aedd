"""What the kernels of all families share."""
