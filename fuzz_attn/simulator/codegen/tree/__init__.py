"""The generated code as a tree: `expressions`, `statements`, and `pruning` of statements whose result nothing reads."""
