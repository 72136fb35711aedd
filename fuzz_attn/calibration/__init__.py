"""Calibration: tiny easy cases, judged by the oracle, settle what the names of a target's parameters do not tell.

``questions`` holds the conventions that are asked for and their candidates, ``easy_cases`` the cases, ``trial`` runs a
candidate, and ``calibrate`` asks.
"""
