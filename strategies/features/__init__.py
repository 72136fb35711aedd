"""Strategies of single features: windows, ALiBi slopes, query-query biases, sinks, soft caps, scales."""
