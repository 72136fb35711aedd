"""Counterexamples: failures as files.

``counterexample`` saves and loads them, ``signature`` names their bugs, ``trust`` says whose targets a replay imports.
"""
