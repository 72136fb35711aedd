"""Inputs: the tensors of a case, bit for bit the same on every machine.

``tensors`` makes them. ``numbers`` and ``biases`` are their values, from the raw bits of ``random_bits``;
``batch_rows`` and ``page_map`` say where tokens and keys lie. ``storage`` lays them out between ``poison``,
``tensor_types`` holds their types in torch and numpy. ``transforms`` changes tensors for metamorphic relations,
``copies`` copies them.
"""
