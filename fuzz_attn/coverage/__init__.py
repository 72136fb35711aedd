"""Mask coverage: which masks and branches of the kernels a campaign saw all true, all false and mixed.

``mask_coverage`` holds the records of a run and their file, ``explanations`` the reasons why some masks of this
project's own kernels cannot show every outcome.
"""
