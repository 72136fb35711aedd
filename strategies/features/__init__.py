"""Strategies of the features of a case: window, slopes, bias, sinks, soft cap, scales."""
