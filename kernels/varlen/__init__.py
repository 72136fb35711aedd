"""Attention over packed keys and values, with query and key lengths that do not depend on each other."""
