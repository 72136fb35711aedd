"""Attention: the operation that this project began with."""
