"""The front end: from a Triton kernel and its arguments to a tree of operations."""
