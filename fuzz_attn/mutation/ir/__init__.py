"""Mutants of a kernel's IR."""
