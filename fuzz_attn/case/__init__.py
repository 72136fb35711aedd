"""A case: the whole input of one attention call as plain data.

``attention_case`` holds the case and what it must fulfil, ``case_fields``, ``parts`` and ``recipes`` what it is made
of, and which of it kernels are compiled for. ``aspects``, ``families`` and ``cache_layout`` are the tables
that the rest of the package reads. ``domain`` is what a target promises, ``description`` a case in words.
"""
