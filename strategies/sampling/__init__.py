"""The means of all strategies: ``draws``, tables of sizes (``lattices``), ``covering_arrays``, ``budgets``."""
