"""Scores: what is wrong with weights of the right keys.

``terms`` has the terms of the scores and the weights that they give. ``logits`` looks for mistakes in one term,
``bias_terms`` for those in slopes and biases. ``ablations`` takes a feature away, ``softmaxes`` looks at sums and at
parts.
"""
