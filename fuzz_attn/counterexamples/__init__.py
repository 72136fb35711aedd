"""Counterexamples: saved failures and their signatures."""
