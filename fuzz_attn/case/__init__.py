"""A case: the whole input of one attention call as plain data.

``attention_case`` holds the case and what it must fulfil, ``case_fields``, ``parts`` and ``recipes`` what it is made
of. ``aspects``, ``dtypes``, ``families`` and ``cache_layout`` are the tables that the rest of the package reads.
``compile_key`` is what kernels are compiled for, ``domain`` what a target promises, ``description`` a case in words.
"""
