"""Counterexamples: failures as files.

``counterexample`` saves and loads them and names their bugs, ``trust`` says whose targets a replay imports.
"""
