"""Refusals: which combinations of features and sizes a target refuses, so that a campaign draws them no longer.

``attributes`` names what a case may be refused for, ``reduction`` finds the smallest refused combination, ``rules``
keeps the combinations of a campaign and says what they exclude, and ``telling`` writes them as bytes for other shards.
"""
