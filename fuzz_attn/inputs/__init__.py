"""Inputs: the tensors of a case, bit for bit the same on every machine.

``tensors`` makes them. ``numbers`` are their values, from the raw bits of ``random_bits``; ``batch_rows`` and
``page_map`` say where tokens and keys lie, and ``stores`` reads keys back from there. ``storage`` lays them out between
poison, ``tensor_types`` holds their types in torch and numpy. ``output_tensors`` are what a target writes.
``transforms`` changes tensors for metamorphic relations.
"""
