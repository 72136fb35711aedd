"""Forensics: what a kernel did wrong in one failing case, found by more calls, as reason and words.

``lab`` launches changed tensors of the case. ``recovery`` reads the weights that the kernel used: V is replaced by unit
vectors. ``masks``, ``leaks``, ``logits``, ``addresses`` and ``outputs`` each ask one kind of question; ``explain`` asks
them in order.
"""
