"""Operations: what can be fuzzed, each as one object of :class:`fuzz_attn.operations.operation.Operation`.

``registry`` lists them, and finds that of a case, a domain or a family. Engine, reports and files know an operation
only as such an object. Each operation has a package of its own.
"""
