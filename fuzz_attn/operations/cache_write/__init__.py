"""Cache writes: the keys and values of new tokens go into slots of a paged cache, and nothing else of it changes.

- ``write_case`` has the case, the domain and all aspects; ``write_draws`` draws cases; ``write_tensors`` makes tensors.
- ``write_experiment`` has the launches, the reference and the relations, one of which reads the written caches by
  attention; ``write_target`` is what is called.
- ``write_explain`` says what a kernel did wrong, with ``wrong_roundings`` and ``wrong_slots``. ``cache_writing`` is the
  operation itself.
"""
