"""Sanitizers: checks of each access, and outcomes of masks.

`access_checks` checks an access: its bounds, uninitialised reads by the shadows of `uninitialised`, races by the
trackers of `races`. `order` checks loads after stores within a program. `mask_outcomes` records how each mask came out.
"""
