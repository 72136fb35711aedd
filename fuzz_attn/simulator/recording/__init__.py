"""Recording: the values of each operation of the kernels that run, to find the first that differs between two kernels.

`recorder` makes programs that record, and keeps a digest of each value. `difference` pairs the operations of two
kernels, and compares the values of pairs in the order in which they were computed.
"""
