"""Families: the registry of kernel families, with what tells their interfaces apart.

``unified`` reads every key from the cache. ``paged`` decodes one query token of each sequence. ``context`` takes the
keys and values of the new tokens packed, beside a cache of the context. ``chunked`` is ``context`` for sequences with
more than one query token and ``paged`` for the others.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fuzz_attn.case.cache_layout import ROWS, SPLIT, CacheFormat
from fuzz_attn.case.parts import LaunchPath

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
    "empty_decodes",
    "padded_tokens",
    "filter_by_query_len",
    "uint8_cache",
    "stale_cache",
    "large_offsets",
    "scale_signs",
    "mixed_dtypes",
    "bias_dtypes",
    "inner_strides",
    "call_forms",
    "far_axes",
]
"""What a case may have beyond plain paged attention; :mod:`fuzz_attn.case.features` says when a case has it.

``filter_by_query_len`` makes the kernel skip the sequences of the other family (arguments ``filter_by_query_len`` and
``skip_decode``). ``uint8_cache`` passes fp8 caches as bytes. A ``stale_cache`` does not hold the new tokens yet.
``large_offsets`` put pages billions of elements into caches of many gigabytes, of which only those pages have memory:
not for a target that copies or converts whole caches.
``scale_signs`` are scales of 0 or below. ``mixed_dtypes`` are an output of another type than q's, or two kinds of fp8.
``bias_dtypes`` are slopes and biases of other types than float32. ``inner_strides`` are strides that published kernels
assume to be dense: of the columns of a query-query bias, inside the pages of a split cache, and of new values that
differ from those of new keys. ``call_forms`` are arguments in other forms with the same meaning.
``empty_decodes`` are sequences of length 0 where token i belongs to sequence i: the target leaves their rows alone.
``far_axes`` put tokens, heads, slots or dimensions of a tensor 2^31 elements from the first one; only the elements have
memory.
"""

UNPUBLISHED_FEATURES: Final[frozenset[Feature]] = frozenset(
    ("scale_signs", "mixed_dtypes", "bias_dtypes", "inner_strides", "call_forms", "far_axes", "empty_decodes")
)
"""Features that no published signature promises: a target must declare them."""

_COMMON: Final[frozenset[Feature]] = (UNPUBLISHED_FEATURES - {"empty_decodes"}) | frozenset[Feature](
    ("window", "alibi", "sinks", "fp8_kv", "fp8_out", "strides", "empty_sequences", "padded_tokens", "large_offsets")
)


@dataclass(frozen=True)
class Interface:
    """What the launchers of one family take and do.

    ``features`` are those that its arguments can express, ``paths`` the launch paths that a case may ask for.
    ``one_token_each``: every sequence has one query token, unless ``filter_by_query_len`` skips the others.
    ``packed_from`` is the shortest query whose keys are read from packed tensors instead of the cache, None for no
    packed tensors.
    """

    words: str
    features: frozenset[Feature]
    cache: CacheFormat
    paths: tuple[LaunchPath, ...] = ("auto",)
    one_token_each: bool = False
    packed_from: int | None = None

    @property
    def packs_new_keys(self) -> bool:
        """Whether the keys and values of the new tokens are arguments of their own."""
        return self.packed_from is not None

    @property
    def has_several_paths(self) -> bool:
        """Whether a case may ask for a launch path, as kernels with and without segments."""
        return self.paths != ("auto",)

    @property
    def needs_query_starts(self) -> bool:
        """Whether a launcher cannot do without the starts of the queries: not where each sequence has one token."""
        return not self.one_token_each

    @property
    def decodes_apart(self) -> bool:
        """Whether a sequence with one query token goes to another kernel than a longer one."""
        return self.one_token_each or (self.packed_from or 0) > 1

    def answers(self, query_len: int, *, filter_by_query_len: bool) -> bool:
        """Return whether the family writes the rows of a sequence, or leaves them to the other one."""
        return not filter_by_query_len or (query_len == 1) == self.one_token_each

    def reads_packed(self, query_len: int) -> bool:
        """Return whether the keys of a sequence's new tokens are read packed instead of from the cache."""
        return self.packed_from is not None and query_len >= self.packed_from


FAMILIES: Final[dict[Family, Interface]] = {
    "unified": Interface(
        words="unified attention",
        features=_COMMON | {"softcap", "qq_bias", "fp8_q"},
        cache=ROWS,
        paths=("auto", "2d", "3d"),
    ),
    "paged": Interface(
        words="paged decode",
        features=_COMMON | {"filter_by_query_len", "uint8_cache", "empty_decodes"},
        cache=SPLIT,
        one_token_each=True,
    ),
    "context": Interface(
        words="context attention",
        features=_COMMON | {"filter_by_query_len", "uint8_cache", "stale_cache"},
        cache=SPLIT,
        packed_from=0,
    ),
    "chunked": Interface(
        words="context attention, then paged decode",
        features=_COMMON | {"uint8_cache", "stale_cache"},
        cache=SPLIT,
        packed_from=2,
    ),
}
"""Every family by its name, the simplest first."""

SIMPLEST: Final[Family] = "unified"
"""The family of a case that names none."""

ALL_FEATURES: Final[frozenset[Feature]] = frozenset().union(*(interface.features for interface in FAMILIES.values()))
