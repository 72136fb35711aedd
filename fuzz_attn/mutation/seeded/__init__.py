"""Seeded bugs: defects that somebody shipped, as edits of this project's kernels.

``bugs`` reads the TOML files of ``tables/`` and writes edited copies of the kernels; ``edited_kernels`` imports those.
"""
