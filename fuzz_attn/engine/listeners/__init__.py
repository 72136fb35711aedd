"""Listeners of a run: ``statistics`` counts its events, ``results`` keeps its failures, ``event_log`` writes a file.

``novelty`` notes when anything was new.
"""
