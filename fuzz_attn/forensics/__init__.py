"""Forensics: what a kernel did wrong in one failing case, found by more calls, as reason and words.

``lab`` launches changed tensors of the case. ``attended_keys`` reads the weights that the kernel used: V is replaced by
unit vectors. ``leaks``, ``addresses``, ``accesses`` and ``wrong_outputs`` each ask one kind of question, and where
weights of the right keys are wrong, ``score_mistakes`` looks for mistakes in one of the ``score_terms``, ``softmaxes``
at sums and at parts. ``inquiry`` asks them in order for ``explain``, which returns an ``explanation``.
``first_operation`` compares with a healthy kernel.
"""
