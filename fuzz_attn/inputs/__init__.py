"""Inputs: the tensors of a case, bit for bit the same on every machine.

``tensors`` makes them. ``numbers`` and ``biases`` are their values, from the raw bits of ``random_bits``; ``rows`` and
``page_map`` say where tokens and keys lie. ``storage`` and ``cache_memory`` lay them out between ``poison``, ``dtypes``
holds their types in torch and numpy. ``transforms`` changes tensors for metamorphic relations, ``snapshots`` copies
their memory.
"""
