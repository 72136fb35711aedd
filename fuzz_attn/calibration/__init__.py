"""Calibration: tiny easy cases, judged by the oracle, settle what the names of a target's parameters do not tell.

``calibrate`` asks questions, whose candidates it tries on ``easy_cases``. A feature that a target promises by name and
refuses even there is a broken promise.
"""
