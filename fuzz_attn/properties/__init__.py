"""Properties: what must hold for every case. Each is a named question to one experiment, answered by a verdict.

The first launch answers the launch properties together (``launch.py``, ``hull.py``). A relation takes another launch,
so a campaign asks for one at a time: ``exact.py`` has those that hold bit for bit, ``bounded.py`` those that hold
within the error bound, ``absent.py`` those of a feature that is on and does nothing. ``catalogue.py`` says, without
torch, which relations there are and for which cases each holds; ``check.py`` asks. ``fuzz_attn/inputs/transforms.py``
makes the tensors of another launch, ``comparisons.py`` the verdict on it.
"""
