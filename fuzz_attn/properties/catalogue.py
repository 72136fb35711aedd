"""The catalogue of relations: their names, and for which cases of which domain each holds. Needs no torch.

A campaign draws a case first and then one of the relations that hold for it, so that nothing is drawn in vain.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.dtypes import is_fp8
from fuzz_attn.case.families import FAMILIES, Family, Feature
from fuzz_attn.case.translation import translated

OWN_FAMILIES: Final[tuple[Family, ...]] = tuple(FAMILIES)
"""The families that this project has kernels of."""

Applies = Callable[[AttentionCase, Domain], bool]


@dataclass(frozen=True)
class Relation:
    """A relation by its name, and whether it holds for a case on a target of a domain.

    ``compiles`` tells that its launch is for another compile key than the case's own.
    """

    name: str
    applies: Applies
    compiles: bool = False


def relations_of(case: AttentionCase, domain: Domain) -> tuple[str, ...]:
    """Return the names of the relations that hold for a case."""
    return tuple(relation.name for relation in RELATIONS.values() if relation.applies(case, domain))


def chosen(choice: int, case: AttentionCase, domain: Domain, among: Collection[str] | None = None) -> str:
    """Return one of the relations that hold for a case, each for as many choices as any other.

    ``among`` names those to choose from; one that holds for every case must be in it.

    The same choice keeps its relation while a case is shrunk, as long as that still holds: each relation has a random
    rank under a choice, and the highest of those that hold is taken.
    """
    holding = [name for name in relations_of(case, domain) if among is None or name in among]
    return max(holding, key=lambda name: _rank(choice, name))


def num_pages(case: AttentionCase) -> int:
    """Return how many physical pages with memory a case has, those that belong to nobody included."""
    counts = [-(-sequence.seq_len // case.pages.block_size) for sequence in case.sequences]
    shared = min(case.pages.shared_prefix, max(counts, default=0))
    return shared + sum(max(0, count - shared) for count in counts) + case.pages.spare_blocks


def live_sequences(case: AttentionCase) -> tuple[int, ...]:
    """Return which sequences have query tokens."""
    return tuple(index for index, sequence in enumerate(case.sequences) if sequence.query_len)


def other_families(case: AttentionCase) -> tuple[Family, ...]:
    """Return the other families of this project's kernels that can be asked the same problem."""
    return tuple(family for family in OWN_FAMILIES if family != case.family and translated(case, family) is not None)


def _rank(choice: int, name: str) -> bytes:
    return hashlib.blake2b(f"{choice}/{name}".encode(), digest_size=8).digest()


def _always(case: AttentionCase, domain: Domain) -> bool:
    return True


def _has_tokens(case: AttentionCase, domain: Domain) -> bool:
    return case.num_tokens > 0


def _has_pages(case: AttentionCase, domain: Domain) -> bool:
    return case.num_tokens > 0 and num_pages(case) > 1


def _may_be_strided(case: AttentionCase, domain: Domain) -> bool:
    return case.num_tokens > 0 and domain.allows("strides")


def _may_be_empty(case: AttentionCase, domain: Domain) -> bool:
    """Return whether empty sequences may stand in the batch; a paged decode that leaves nobody out has no place."""
    return (
        case.num_tokens > 0
        and domain.allows("empty_sequences")
        and (case.family != "paged" or case.filter_by_query_len)
    )


def _has_several(case: AttentionCase, domain: Domain) -> bool:
    return len(live_sequences(case)) > 1


def _may_be_cut(case: AttentionCase, domain: Domain) -> bool:
    """Return whether the target can be told to take either kernel, of one pass or of several segments."""
    return case.num_tokens > 0 and {"2d", "3d"} <= set(domain.paths)


def _has_heads(case: AttentionCase, domain: Domain) -> bool:
    return case.num_tokens > 0 and case.heads.num_query_heads > 1


def _has_exact_sums(case: AttentionCase, scale: float) -> bool:
    """Return whether a sum of two stored numbers is the sum of what they stand for, wherever they are read from.

    fp8 numbers are scaled and rounded to the type of q, which is exact for a power of two alone; and packed new tokens
    are not rounded to fp8 as those in the cache are.
    """
    if not is_fp8(case.dtypes.kv) or is_fp8(case.dtypes.q):
        return True
    return math.frexp(scale)[0] == 0.5 and not any(case.reads_packed)


def _may_shift_keys(case: AttentionCase, domain: Domain) -> bool:
    plain = not case.softcap and case.sinks is None
    return case.num_tokens > 0 and plain and _has_exact_sums(case, case.scales.k)


def _may_shift_values(case: AttentionCase, domain: Domain) -> bool:
    """Return whether the weights sum to 1 and the sum is not clamped on its way out."""
    plain = case.sinks is None and not is_fp8(case.dtypes.out)
    return case.num_tokens > 0 and plain and _has_exact_sums(case, case.scales.v)


def _has_window(case: AttentionCase, domain: Domain) -> bool:
    """Return whether there is a window that hides a key when it is one narrower, and still shows one."""
    return case.num_tokens > 0 and 2 <= case.window <= case.max_seq_len


def _has_another_family(case: AttentionCase, domain: Domain) -> bool:
    return case.num_tokens > 0 and bool(other_families(case))


def _may_have_scales(case: AttentionCase, domain: Domain) -> bool:
    return case.num_tokens > 0 and domain.allows("fp8_kv")


def _lacks(feature: Feature) -> Applies:
    """Return the condition that the target knows a feature that the case does without."""

    def lacks(case: AttentionCase, domain: Domain) -> bool:
        return case.num_tokens > 0 and domain.allows(feature) and not getattr(case, feature)

    return lacks


RELATIONS: Final = {
    relation.name: relation
    for relation in (
        Relation("determinism", _always),
        Relation("poison_independence", _always),
        Relation("page_permutation", _has_pages),
        Relation("other_strides", _may_be_strided),
        Relation("empty_sequences", _may_be_empty),
        Relation("batch_order", _has_several),
        Relation("alone_in_batch", _has_several),
        Relation("segments", _may_be_cut, compiles=True),
        Relation("head_permutation", _has_heads),
        Relation("key_shift", _may_shift_keys),
        Relation("value_shift", _may_shift_values),
        Relation("value_scale", _has_tokens),
        Relation("narrower_window", _has_window),
        Relation("other_family", _has_another_family, compiles=True),
        Relation("wide_window", _lacks("window"), compiles=True),
        Relation("zero_slopes", _lacks("alibi"), compiles=True),
        Relation("zero_bias", _lacks("qq_bias"), compiles=True),
        Relation("absent_sinks", _lacks("sinks"), compiles=True),
        Relation("unit_scales", _may_have_scales, compiles=True),
    )
}
"""Every relation by its name."""
