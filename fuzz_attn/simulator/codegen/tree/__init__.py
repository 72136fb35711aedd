"""The typed tree that generated code is made of.

``expressions`` compute values, ``statements`` hold them with the names that they define and read and the operation that
they stem from, ``pruning`` drops statements without a use, and ``value_ranges`` bound integers.
"""
