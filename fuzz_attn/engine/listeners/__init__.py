"""Listeners of a run: ``statistics`` counts its events, ``distributions`` how its cases are spread.

``results`` keeps its failures. ``statistics`` compares them with its failing cases. ``event_log`` writes a file.
"""
