"""Listeners of a run: ``statistics`` counts its events, ``distributions`` how its cases are spread.

``results`` keeps its failures, ``event_log`` writes a file, and ``novelty`` notes when anything was new.
"""
