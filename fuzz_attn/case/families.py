"""Families: what the kernel families have in common and what tells them apart. Read by cases, domains and strategies.

``unified`` reads everything from a cache ``[num_blocks, block_size, num_kv_heads, head_size]``. The others split their
caches: keys ``[num_blocks, num_kv_heads, head_size // x, block_size, x]``, values
``[num_blocks, num_kv_heads, head_size, block_size]``. ``paged`` answers one query token of each sequence. ``context``
takes the new tokens' keys and values densely packed; ``chunked`` is context for sequences with more than one query
token and paged for the rest.
"""

from typing import Final, Literal, TypeAlias

Family: TypeAlias = Literal["unified", "paged", "context", "chunked"]

Feature: TypeAlias = Literal[
    "window",
    "softcap",
    "alibi",
    "qq_bias",
    "sinks",
    "fp8_kv",
    "fp8_q",
    "fp8_out",
    "strides",
    "empty_sequences",
    "padded_tokens",
    "filter_by_query_len",
    "uint8_cache",
    "stale_cache",
    "large_offsets",
]
"""What a case may have switched on beyond plain paged attention.

``filter_by_query_len`` tells the kernel to leave the other family's sequences alone (``filter_by_query_len``,
``skip_decode``); ``uint8_cache`` hands fp8 caches over as bytes; a ``stale_cache`` does not hold the new tokens yet.
``large_offsets`` lie billions of elements into caches of many gigabytes, the rest of which is never touched: nothing
for a target that copies or converts whole caches.
"""

_COMMON: Final[frozenset[Feature]] = frozenset(
    ("window", "alibi", "sinks", "fp8_kv", "fp8_out", "strides", "empty_sequences", "padded_tokens", "large_offsets")
)

FEATURES: Final[dict[Family, frozenset[Feature]]] = {
    "unified": _COMMON | {"softcap", "qq_bias", "fp8_q"},
    "paged": _COMMON | {"filter_by_query_len", "uint8_cache"},
    "context": _COMMON | {"filter_by_query_len", "uint8_cache", "stale_cache"},
    "chunked": _COMMON | {"uint8_cache", "stale_cache"},
}
"""What each family's interface can express."""

ALL_FEATURES: Final[frozenset[Feature]] = frozenset().union(*FEATURES.values())

SPLIT_CACHES: Final[frozenset[Family]] = frozenset(("paged", "context", "chunked"))
"""Families whose caches are split: a key's columns lie in pieces of 16 bytes, a value's columns apart."""

DENSE_NEW_KEYS: Final[frozenset[Family]] = frozenset(("context", "chunked"))
"""Families that take the new tokens' keys and values densely packed."""

PIECE_BYTES: Final = 16
"""Bytes of a key that lie together in a split cache."""


def answers(family: Family, query_len: int, *, filter_by_query_len: bool) -> bool:
    """Return whether a family writes the rows of a sequence, or leaves it to the other one."""
    if not filter_by_query_len:
        return True
    return query_len == 1 if family == "paged" else query_len != 1


def reads_dense(family: Family, query_len: int) -> bool:
    """Return whether the keys of a sequence's new tokens are read densely packed instead of from the cache."""
    return family == "context" or (family == "chunked" and query_len > 1)
