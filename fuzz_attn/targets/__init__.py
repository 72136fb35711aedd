"""Targets: what can be fuzzed, how it is found, and how it is called."""
