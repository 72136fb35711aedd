"""Attention: the operation that this project began with.

``attention`` is the operation itself, ``drawing`` draws the rounds of cases, and ``refusals`` finds which combinations
of features and sizes a target refuses.
"""
