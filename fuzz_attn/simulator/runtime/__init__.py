"""The runtime: what generated code calls while it runs."""
