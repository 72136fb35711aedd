"""What strategies are made of: draws, tables of sizes, covering arrays, budgets."""
