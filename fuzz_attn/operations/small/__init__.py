"""Small: what operations share whose cases have few compile keys, and whose targets are called by parameter names."""
