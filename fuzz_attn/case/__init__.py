"""A case: the whole input of one attention call as plain data.

``attention_case`` holds the case, ``case_fields``, ``parts`` and ``recipes`` what it is made of, ``checks`` what it
must fulfil. ``dtypes``, ``families``, ``features`` and ``cache_layout`` are the tables that the rest of the package
reads. ``compile_key`` is what kernels are compiled for, ``domain`` what a target promises, ``description`` a case in
words, ``translation`` the same problem for another family.
"""
