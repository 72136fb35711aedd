"""Seeded bugs: defects that somebody shipped, as edits of this project's kernels."""
