"""A case: the whole input of one attention call as plain data, its recipes, families, domain and words."""
