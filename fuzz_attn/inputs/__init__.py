"""Inputs: the tensors of a case, the same bits on every machine."""
