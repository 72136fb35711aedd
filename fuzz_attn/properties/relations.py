"""The registry of metamorphic relations: name, claim, and the cases for which each holds. Does not import torch.

A campaign draws a case first, and then one of the relations that hold for it, so that no draw is wasted.

A second case is the second launch of a relation as a case of its own. Most have other random numbers, so they show bugs
of lengths, order, features and poison. Such a bug needs no relation.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from msgspec import structs

from fuzz_attn.case.aspects import FEATURES, FEATURES_OF, MASK_FEATURES, Feature, all_features_of, with_feature
from fuzz_attn.case.attention_case import AttentionCase, replace, replace_layout, translated
from fuzz_attn.case.domain import Domain, beside
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import INNER_STRIDES, Sequence, Strides, is_fp8
from fuzz_attn.case.recipes import CAUSAL, Full, PoisonRecipe, SlotPoison, TablePoison
from fuzz_attn.errors import CaseError

OWN_FAMILIES: Final[tuple[Family, ...]] = ("unified", "paged", "context", "chunked")
"""The families whose kernels of this project other ones are compared with."""

EXPANDED_SIZE: Final = 256
"""The largest head of the unified family's kernel."""
MOST_EXPANDED: Final = 2**20
"""Elements that latent keys may have with a copy for each query head."""
STRIDE_STEP: Final = 16
"""Elements by which a padding changes: a compiler that specialises on multiples of 16 generates the same code."""

Condition: TypeAlias = Callable[[AttentionCase, Domain], bool]
RelationKind: TypeAlias = Literal["exact", "bounded", "absent"]
"""Both launches give the same bits; or the second output stays within its error bound of the expected one; or the same
for a feature that is switched on without effect."""


@dataclass(frozen=True)
class Relation:
    """A metamorphic relation.

    ``kind`` names the module that holds the relation's function, which has the relation's name. ``claim`` is the
    sentence that a report prints. ``holds`` returns whether it does for a case on a target of a domain. ``compiles`` is
    true if the second launch has another compile key than the case. ``adds`` is a feature that the second launch has
    and the case has not.
    """

    name: str
    kind: RelationKind
    claim: str
    holds: Condition
    compiles: bool = False
    adds: Feature | None = None


def relations_of(case: AttentionCase, domain: Domain) -> tuple[str, ...]:
    """Return the names of the relations that hold for a case."""
    return tuple(relation.name for relation in RELATIONS.values() if relation.holds(case, domain))


def chosen_relation(
    choice: int,
    case: Any,
    domain: Any,
    among: Collection[str] | None = None,
    relations: Mapping[str, Relation] | None = None,
) -> str:
    """Return one of the relations that hold for a case; over all choices each is equally frequent.

    ``among`` limits the choice to some names, at least one of which must hold for every case. ``relations`` are those
    of another operation.

    A choice keeps its relation while a case is shrunk, as long as the relation still holds: each relation has a random
    rank that depends on the choice, and the highest rank among those that hold is taken. To ask all of them whether
    they hold would take up to 1% of a whole case.
    """
    known = RELATIONS if relations is None else relations
    names = known if among is None else [name for name in known if name in among]
    ranked = sorted(names, key=lambda name: _rank(choice, name), reverse=True)
    return next(name for name in ranked if known[name].holds(case, domain))


def relation_in_words(name: str) -> str:
    """Return a relation's name and claim for a report; the bare name if the relation is unknown."""
    words = name.replace("_", " ")
    return f"{words}: {RELATIONS[name].claim}" if name in RELATIONS else words


def num_pages(case: AttentionCase) -> int:
    """Return how many physical pages with memory a case has, including the spare ones."""
    counts = [-(-sequence.seq_len // case.pages.block_size) for sequence in case.sequences]
    shared = min(case.pages.shared_prefix, max(counts, default=0))
    return shared + sum(max(0, count - shared) for count in counts) + case.pages.spare_blocks


def live_sequences(case: AttentionCase) -> tuple[int, ...]:
    """Return the indices of the sequences that have query tokens."""
    return tuple(index for index, sequence in enumerate(case.sequences) if sequence.query_len)


def other_families(case: AttentionCase) -> tuple[Family, ...]:
    """Return the other families of this project's kernels that can express the same problem."""
    return tuple(family for family in OWN_FAMILIES if family != case.family and translated(case, family) is not None)


def _rank(choice: int, name: str) -> bytes:
    return hashlib.blake2b(f"{choice}/{name}".encode(), digest_size=8).digest()


def _always(case: AttentionCase, domain: Domain) -> bool:
    return True


def _has_own_values(case: AttentionCase, domain: Domain) -> bool:
    """Return whether there are tokens, and values that are no parts of keys."""
    return case.num_tokens > 0 and not FAMILIES[case.family].cache.is_latent


def _has_several_pages(case: AttentionCase, domain: Domain) -> bool:
    movable = not FAMILIES[case.family].cache.is_packed
    return case.num_tokens > 0 and movable and num_pages(case) > 1


def _shares_slots(case: AttentionCase, domain: Domain) -> bool:
    """Return whether several keys lie in one slot of caches that a list of slots indexes, all near."""
    if not FAMILIES[case.family].cache.in_one_row or case.pages.first_block or case.strides.far:
        return False
    counts = [-(-sequence.seq_len // case.pages.block_size) for sequence in case.sequences]
    repeated = case.pages.repeated and max(counts, default=0) > 1
    shared = case.pages.shared_prefix > 0 and sum(count > 0 for count in counts) > 1
    return case.num_tokens > 0 and (repeated or shared)


def _may_get(feature: Feature, case: AttentionCase, domain: Domain) -> bool:
    """Return whether a domain has a feature, beside those of the case."""
    if not domain.excluded:
        return domain.allows(feature)
    return beside(domain, all_features_of(case) - {feature}).allows(feature)


def _may_be_strided(case: AttentionCase, domain: Domain) -> bool:
    """Return whether strides may change; those of small pages can make a cache too large."""
    return case.num_tokens > 0 and _may_get("strides", case, domain) and _can_exist(with_other_strides, case)


def _may_have_empty_sequences(case: AttentionCase, domain: Domain) -> bool:
    """Return whether the batch may contain empty sequences; a paged decode without a filter cannot skip them.

    The ones that are added have a context.
    """
    return (
        case.num_tokens > 0
        and not domain.no_context
        and _may_get("empty_sequences", case, domain)
        and (not FAMILIES[case.family].one_token_each or case.filter_by_query_len)
    )


def _has_several_sequences(case: AttentionCase, domain: Domain) -> bool:
    return len(live_sequences(case)) > 1


def _has_both_kernels(case: AttentionCase, domain: Domain) -> bool:
    """Return whether a case can choose between the kernel of one pass and the one of several segments."""
    return case.num_tokens > 0 and {"2d", "3d"} <= set(domain.paths)


def _has_configurations(case: AttentionCase, domain: Domain) -> bool:
    return case.num_tokens > 0 and domain.configurations > 1


def _has_several_heads(case: AttentionCase, domain: Domain) -> bool:
    return case.num_tokens > 0 and case.heads.num_query_heads > 1


def _has_exact_sums(case: AttentionCase, scale: float) -> bool:
    """Return whether the sum of two stored numbers stands for the exact sum, however the numbers are read.

    fp8 numbers are scaled and rounded to the type of q, which is exact only for a power of two. Densely packed new
    tokens are not rounded to fp8, unlike those in the cache.
    """
    if not is_fp8(case.dtypes.kv) or is_fp8(case.dtypes.q):
        return True
    return math.frexp(scale)[0] == 0.5 and not any(case.reads_packed)


def _answers_no_key(case: AttentionCase) -> bool:
    """Return whether some row that is written sees no key."""
    answers = FAMILIES[case.family].answers_no_key and FEATURES["empty_decodes"].present(case)
    return answers or FEATURES["empty_rows"].present(case)


def _may_shift_keys(case: AttentionCase, domain: Domain) -> bool:
    """Return whether a constant added to all scores of a row cancels: a soft cap or a sink would not shift along."""
    plain = not case.softcap and case.sinks is None and _has_own_values(case, domain)
    return plain and _has_exact_sums(case, case.scales.k)


def _may_shift_values(case: AttentionCase, domain: Domain) -> bool:
    """Return whether the weights sum to 1, those of every row, and the output is not clamped."""
    empty = _answers_no_key(case) or FEATURES["fewer_keys"].present(case)
    plain = case.sinks is None and not is_fp8(case.dtypes.out) and not empty
    return plain and _has_own_values(case, domain) and _has_exact_sums(case, case.scales.v)


def _may_narrow_the_window(case: AttentionCase, domain: Domain) -> bool:
    """Return whether a window narrower by one hides another key and leaves at least one, with the usual mask."""
    return case.num_tokens > 0 and case.mask == CAUSAL and 2 <= case.window <= case.max_seq_len


def _has_another_family(case: AttentionCase, domain: Domain) -> bool:
    return case.num_tokens > 0 and bool(other_families(case))


def _has_context(case: AttentionCase, domain: Domain) -> bool:
    """Return whether some sequence with query tokens has pages."""
    return any(case.sequences[index].context_len > 0 for index in live_sequences(case))


def _may_have_a_sequence_twice(case: AttentionCase, domain: Domain) -> bool:
    """Return whether some sequence with query tokens has pages, and the batch may be larger."""
    return _has_context(case, domain) and _has_room_twice(case)


def _has_room_twice(case: AttentionCase) -> bool:
    """Return whether a batch with each sequence twice is still within the limits of a case."""
    return _can_exist(lambda one: replace(one, sequences=2 * one.sequences, overrides=()), case)


def _can_exist(change: Callable[[AttentionCase], AttentionCase], case: AttentionCase) -> bool:
    """Return whether a changed case is still within the limits of a case."""
    try:
        change(case)
    except CaseError:
        return False
    return True


def _may_be_expanded(case: AttentionCase, domain: Domain) -> bool:
    """Return whether latent keys fit the kernel of the unified family, one copy for each query head."""
    if not FAMILIES[case.family].cache.is_latent or not all(s.seq_len for s in case.sequences):
        return False
    elements = sum(s.seq_len for s in case.sequences) * case.heads.num_query_heads * case.heads.head_size
    return case.num_tokens > 0 and case.heads.head_size <= EXPANDED_SIZE and elements <= MOST_EXPANDED


def _may_be_cut(case: AttentionCase, domain: Domain) -> bool:
    """Return whether the output and its log-sum-exp are sums over keys of the caches, of more than one page."""
    sums = case.lse is not None and case.sinks is None and not is_fp8(case.dtypes.out)
    plain = case.mask in (CAUSAL, Full()) and not case.window and case.alibi is None and case.qq_bias is None
    if not (sums and plain and all(case.answers)) or FAMILIES[case.family].packs_new_keys:
        return False
    return _has_room_twice(case) and any(s.query_len and s.seq_len > case.pages.block_size for s in case.sequences)


def _may_have_scales(case: AttentionCase, domain: Domain) -> bool:
    return case.num_tokens > 0 and domain.allows("fp8_kv")


def _may_have_causal_bits(case: AttentionCase, domain: Domain) -> bool:
    """Return whether the causal mask of a case can be passed as a custom one."""
    causal = case.num_tokens > 0 and case.mask == CAUSAL
    return causal and all(_may_get(feature, case, domain) for feature in sorted(MASK_FEATURES["custom_alone"]))


def _absent(name: str, feature: Feature, claim: str) -> Relation:
    """Return the relation of a feature that is switched on without effect, where the target has it and a case not."""

    def lacks(case: AttentionCase, domain: Domain) -> bool:
        if feature == "alibi" and "zero" not in domain.alibi_kinds:
            return False
        return case.num_tokens > 0 and not getattr(case, feature) and _may_get(feature, case, domain)

    return Relation(name, "absent", claim, lacks, compiles=True, adds=feature)


RELATIONS: Final = {
    relation.name: relation
    for relation in (
        Relation("determinism", "exact", "a second launch on the same input gives the same bits", _always),
        Relation("poison_independence", "exact", "unused memory does not change the output", _always),
        Relation(
            "page_permutation",
            "exact",
            "the physical order of the pages does not change the output",
            _has_several_pages,
        ),
        Relation("own_slots", "exact", "slots that several keys share may as well be copies", _shares_slots),
        Relation("other_strides", "exact", "strides do not change the output", _may_be_strided),
        Relation(
            "empty_sequences",
            "exact",
            "empty sequences do not change the output of the others",
            _may_have_empty_sequences,
        ),
        Relation(
            "batch_order",
            "bounded",
            "reversing the sequences of a batch reverses their outputs",
            _has_several_sequences,
        ),
        Relation(
            "alone_in_batch",
            "bounded",
            "the output of a sequence does not depend on the rest of the batch",
            _has_several_sequences,
        ),
        Relation(
            "segments",
            "bounded",
            "the 2D kernel and the 3D kernel, with any number of segments, give the same output",
            _has_both_kernels,
            compiles=True,
        ),
        Relation("head_permutation", "bounded", "permuting the heads permutes the output", _has_several_heads),
        Relation(
            "key_shift",
            "bounded",
            "one vector added to all keys does not change the output",
            _may_shift_keys,
        ),
        Relation(
            "value_shift",
            "bounded",
            "one vector added to all values is added to the output",
            _may_shift_values,
        ),
        Relation("value_scale", "bounded", "scaling the values scales the output", _has_own_values),
        Relation(
            "narrower_window",
            "bounded",
            "a window narrower by one hides exactly one key of each row that it cuts",
            _may_narrow_the_window,
        ),
        Relation(
            "other_family",
            "bounded",
            "the kernel of another family gives the same output",
            _has_another_family,
            compiles=True,
        ),
        Relation(
            "cut_by_keys",
            "bounded",
            "the merged outputs of the first and of the other pages of a sequence are its output",
            _may_be_cut,
        ),
        Relation(
            "expanded_heads",
            "bounded",
            "unified attention on the latent keys, copied for each query head, gives the same output",
            _may_be_expanded,
            compiles=True,
        ),
        Relation(
            "sequence_twice",
            "bounded",
            "a sequence twice in a batch, on the same pages, does not change the output",
            _may_have_a_sequence_twice,
        ),
        _absent("wide_window", "window", "a window at least as long as every sequence and its query hides nothing"),
        _absent("zero_slopes", "alibi", "ALiBi slopes of 0 change nothing"),
        _absent("zero_bias", "qq_bias", "query-query biases of 0 change nothing"),
        _absent("absent_sinks", "sinks", "sinks of -inf change nothing"),
        Relation(
            "causal_bits",
            "absent",
            "a custom mask with the bits of the causal one gives the same output",
            _may_have_causal_bits,
            compiles=True,
            adds="custom_mask",
        ),
        Relation("unit_scales", "absent", "scales of 1 scale nothing", _may_have_scales, compiles=True),
        Relation(
            "configurations",
            "bounded",
            "another configuration of an autotuned kernel gives the same output",
            _has_configurations,
            compiles=True,
        ),
    )
}
"""Every relation by its name. The order is part of the random draws of a campaign."""


_OTHER_SLOT: Final[dict[SlotPoison, SlotPoison]] = {
    "nan": "huge",
    "inf": "nan",
    "negative_inf": "nan",
    "huge": "negative_inf",
    "zero": "nan",
}
_OTHER_ENTRY: Final[dict[TablePoison, TablePoison]] = {
    "zero": "one_past",
    "negative": "zero",
    "one_past": "negative",
    "huge": "zero",
}


def has_second_case(relation: str) -> bool:
    """Return whether the second launch of a relation is like a case of its own."""
    return relation in _SECOND or RELATIONS[relation].adds is not None


def second_case(case: AttentionCase, relation: str) -> AttentionCase:
    """Return a case like the second launch of a relation, which must have one.

    Raises :class:`fuzz_attn.errors.CaseError` where the rest of the case does not go with it.
    """
    feature = RELATIONS[relation].adds
    return with_feature(case, feature) if feature is not None else _SECOND[relation](case)


def with_other_poison(case: AttentionCase) -> AttentionCase:
    """Return the case with every poison replaced by another, also the output's."""
    poison = PoisonRecipe(
        keys=_OTHER_SLOT[case.poison.keys],
        values=_OTHER_SLOT[case.poison.values],
        table=_OTHER_ENTRY[case.poison.table],
        out=0 if case.poison.out else 1,
    )
    return replace(case, poison=poison)


def with_other_strides(case: AttentionCase) -> AttentionCase:
    """Return the case with every padding of at least 16 elements shortened by 16, every other lengthened by 16."""
    inner = "inner_strides" in FEATURES_OF[case.family]
    paddings = {
        name: _other_padding(getattr(case.strides, name))
        for name in Strides.__struct_fields__
        if name not in ("cache", "key_piece", "far") and (inner or name not in INNER_STRIDES)
    }
    bias = case.qq_bias
    if bias is not None:
        bias = structs.replace(bias, row_padding=_other_padding(bias.row_padding))
    return replace_layout(case, strides=structs.replace(case.strides, **paddings), qq_bias=bias)


def _other_padding(size: int) -> int:
    return size - STRIDE_STEP if size >= STRIDE_STEP else size + STRIDE_STEP


def _with_other_empties(case: AttentionCase) -> AttentionCase:
    """Return the case without empty sequences, or with one on either side of each sequence if it has none."""
    live = live_sequences(case)
    if len(live) < len(case.sequences):
        return _with_order(case, live)
    empty = Sequence(0, 0 if FAMILIES[case.family].cache.is_packed else case.max_seq_len)
    around = (each for sequence in case.sequences for each in (sequence, empty))
    return replace(case, sequences=(empty, *around), overrides=())


def _reversed(case: AttentionCase) -> AttentionCase:
    return _with_order(case, range(len(case.sequences))[::-1])


def _alone(case: AttentionCase) -> AttentionCase:
    live = live_sequences(case)
    return _with_order(case, (live[case.seed % len(live)],))


def with_other_configuration(case: AttentionCase) -> AttentionCase:
    """Return the case with the first configuration of its kernels, or with the second one where it has the first."""
    number = 0 if case.launch.configuration else 1
    return replace(case, launch=structs.replace(case.launch, configuration=number))


def _with_narrower_window(case: AttentionCase) -> AttentionCase:
    return replace(case, window=case.window - 1)


def _with_order(case: AttentionCase, order: range | tuple[int, ...]) -> AttentionCase:
    return replace(case, sequences=tuple(case.sequences[index] for index in order), overrides=())


_SECOND: Final[dict[str, Callable[[AttentionCase], AttentionCase]]] = {
    "empty_sequences": _with_other_empties,
    "batch_order": _reversed,
    "alone_in_batch": _alone,
    "narrower_window": _with_narrower_window,
    "configurations": with_other_configuration,
    "poison_independence": with_other_poison,
}
