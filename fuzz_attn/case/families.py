"""Families: the registry of kernel families, with what tells their interfaces apart.

``unified`` reads every key from the cache. ``paged`` decodes one query token of each sequence. ``context`` takes the
keys and values of the new tokens packed, beside a cache of the context. ``chunked`` is ``context`` for sequences with
more than one query token and ``paged`` for the others. ``extend`` takes new tokens packed as ``context`` does, beside a
list of the slots of each context, and masks other than the causal one. ``mla_decode`` decodes one query token of each
sequence over a cache whose values are the first elements of its keys (multi-head latent attention). ``token_decode``
decodes one query token of each sequence over a list of the slots of its keys. ``varlen`` reads keys and values packed,
sequence after sequence; a sequence may have fewer keys than query tokens, or none.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fuzz_attn.case.cache_layout import LATENT, PACKED, ROWS, SLOTS, SPLIT, CacheFormat
from fuzz_attn.case.parts import LaunchPath

Family: TypeAlias = Literal["unified", "paged", "context", "chunked", "extend", "mla_decode", "token_decode", "varlen"]


@dataclass(frozen=True)
class Interface:
    """What the launchers of one family take and do.

    ``paths`` are the launch paths that a case may ask for. :mod:`fuzz_attn.case.aspects` says which features its
    arguments can express. ``one_token_each``: every sequence has one query token, unless ``filter_by_query_len`` skips
    the others. ``packed_from`` is the shortest query whose keys are read from packed tensors instead of the cache; None
    where none are. ``answers_no_key``: a row that sees no key is written as 0, not left unchanged. ``any_lengths``: a
    sequence may have fewer keys than query tokens; its context length is then negative.
    """

    words: str
    cache: CacheFormat
    paths: tuple[LaunchPath, ...] = ("auto",)
    one_token_each: bool = False
    packed_from: int | None = None
    answers_no_key: bool = False
    any_lengths: bool = False

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
        cache=ROWS,
        paths=("auto", "2d", "3d"),
    ),
    "paged": Interface(
        words="paged decode",
        cache=SPLIT,
        one_token_each=True,
    ),
    "context": Interface(
        words="context attention",
        cache=SPLIT,
        packed_from=0,
    ),
    "chunked": Interface(
        words="context attention, then paged decode",
        cache=SPLIT,
        packed_from=2,
    ),
    "extend": Interface(
        words="attention of new tokens over indexed slots",
        cache=SLOTS,
        packed_from=0,
    ),
    "mla_decode": Interface(
        words="decode on a latent cache",
        cache=LATENT,
        paths=("auto", "2d", "3d"),
        one_token_each=True,
        answers_no_key=True,
    ),
    "token_decode": Interface(
        words="decode over indexed slots",
        cache=SLOTS,
        paths=("auto", "2d", "3d"),
        one_token_each=True,
        answers_no_key=True,
    ),
    "varlen": Interface(
        words="attention over packed keys and values",
        cache=PACKED,
        answers_no_key=True,
        any_lengths=True,
    ),
}
"""Every family by its name, the simplest first."""

SIMPLEST: Final[Family] = "unified"
"""The family of a case that names none."""
