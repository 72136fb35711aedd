"""Inputs: the tensors of a case, bit for bit the same on every machine.

``tensors`` makes them, and reads keys back from where they lie. ``numbers`` are their values, from the raw bits of
``random_bits``; ``batch_rows`` say where tokens and keys lie. ``storage`` holds their types in torch and numpy, and
lays them out between poison. ``output_tensors`` are what a target writes. ``transforms`` changes tensors for
metamorphic relations.
"""
