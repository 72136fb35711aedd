"""Counterexamples: ``counterexample`` saves and loads failures as files, ``signature`` names their bugs."""
