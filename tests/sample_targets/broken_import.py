"""A target file that raises while it is imported."""

raise RuntimeError("no GPU here")
