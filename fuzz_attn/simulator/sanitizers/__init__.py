"""Sanitizers: what is checked at each access, and which masks were seen."""
