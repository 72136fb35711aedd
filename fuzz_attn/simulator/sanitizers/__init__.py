"""Sanitizers: checks of each access, and coverage of masks.

`accesses` does the checks of an access on a `buffer`: its bounds by `layout`, uninitialised reads by the shadows of
`uninitialised`, and races by the trackers of `races`. `mask_coverage` records which outcomes each mask had.
"""
