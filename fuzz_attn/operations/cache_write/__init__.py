"""Cache writes: the keys and values of new tokens go into slots of a paged cache, and nothing else of it changes.

- ``write_case`` has the case, the domain and all aspects; ``write_draws`` draws cases.
- ``write_experiment`` has the tensors, what is called with them, the launches, the reference and the relations, one of
  which reads the written caches by attention.
- ``write_explain`` says what a kernel did wrong. ``cache_writing`` is the operation itself.
"""
