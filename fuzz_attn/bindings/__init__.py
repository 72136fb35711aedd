"""Bindings as data: how a target is called. No torch here; :mod:`fuzz_attn.targets.bindings` makes the calls."""
