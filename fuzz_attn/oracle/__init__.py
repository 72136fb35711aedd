"""The oracle: the exact output, the error bound, and the comparison of an output with both."""
