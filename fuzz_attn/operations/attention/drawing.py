"""Drawing: the compile keys, layouts and relations of each round of cases, and the rounds that shards share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from random import Random
from typing import Any, Final, NamedTuple

from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

from fuzz_attn.case.aspects import COMPILED_FEATURES, MASK_FEATURES
from fuzz_attn.case.attention_case import AttentionCase, CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import Strides
from fuzz_attn.case.serving import serves
from fuzz_attn.inputs.random_bits import Stream
from fuzz_attn.operations.operation import ALL_SHARDS, Drawing, ExcludesKey, RoundSize, derived_seed
from fuzz_attn.properties.relations import RELATIONS
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.compile_keys import check_key, key_pool, pairs_first, plain_pairs, with_free_sizes
from fuzz_attn.strategies.draws import Sample
from fuzz_attn.strategies.kernel_variants import USUAL, KernelForm, form_of
from fuzz_attn.strategies.memory_layouts import layout_pool
from fuzz_attn.strategies.relation_choices import with_choices
from fuzz_attn.strategies.serving import MODELS

SERVED: Final = 5
"""One key of this many in a round has the types and sizes of a served model, where the target has such keys."""

SERVED_LATER: Final = 10
"""The same of the rounds that shards share, once each model has had a key: more would put off pairs of features."""

FREED: Final = 5
"""One key of this many others in a round has sizes from anywhere in the domain; they differ from round to round."""

_OF_KEYS: Final = frozenset(("fp8_q", "fp8_kv", "fp8_out")).union(COMPILED_FEATURES, *MASK_FEATURES.values())
"""The features that a compile key decides."""

_KEYS: Final = 31
_LAYOUTS: Final = 32
_RELATIONS: Final = 33


class SharedRound(NamedTuple):
    """A visit of one compile key, whose cases share their kernels. Any shard can play it, each with cases of its own.

    ``turn`` counts the visits of the key before this one. The cases of the seed ``sample`` show which kernels it needs.
    """

    key: CompileKey
    form: KernelForm
    relations: frozenset[str]
    sample: int
    turn: int

    @property
    def is_usual(self) -> bool:
        """Whether its kernels are the usual variant."""
        return self.form.variant == USUAL

    def usual(self) -> SharedRound:
        """Return the round with the usual variant of its kernels, for a target that refuses the other."""
        return self._replace(form=self.form._replace(variant=USUAL))

    def narrow(self, domain: Domain) -> SharedRound:
        """Return the round with few windows and widths of block tables, for a target that is compiled for each."""
        return self._replace(form=self.form.narrow(self.key, domain, self.sample))


def cases_of(domain: Domain, wanted: Mapping[str, Any]) -> SearchStrategy[AttentionCase]:
    """Return a strategy of all cases of a domain, of keys that have the wanted values where there are such keys."""
    keys = key_pool(domain)
    for name, value in wanted.items():
        keys = tuple(key for key in keys if _has(key, name, value)) or keys
    return cases(domain, keys=keys)


def _has(key: CompileKey, name: str, value: Any) -> bool:
    """Return whether cases of a key have a value; of most a key says nothing."""
    if name in _OF_KEYS:
        return (name in key.features) == bool(value)
    return bool(getattr(key, name, value) == value)


def shared_round(domain: Domain, campaign: int, number: int, covered: Collection[int] = ()) -> SharedRound:
    """Return a round that the shards of a campaign can share.

    The rounds go through all compile keys, in an order in which pairs of values come early, and then again in another
    order; those whose numbers are ``covered`` come last in the first. All else depends only on the key and on how often
    it came before. So another run with the same output directory finds the kernels of these keys compiled. The first
    visit of a key asks for no relation that compiles another kernel.
    """
    turn, place = divmod(number, len(key_pool(domain)))
    key = _order(domain, derived_seed(campaign, ALL_SHARDS, -1 - turn), frozenset(covered if turn == 0 else ()))[place]
    seed, compiling = derived_seed(key.number, ALL_SHARDS, turn), _compiling_relations(domain)
    if turn and key.number % FREED == 0 and not serves(key):
        key = with_free_sizes(key, domain, Sample(Random(seed)))  # noqa: S311 - nothing secret
    form = form_of(key, layout_pool(family=domain.family, inner_strides=domain.allows("inner_strides")), seed)
    relations = frozenset(name for name, relation in RELATIONS.items() if not relation.compiles)
    if turn:
        relations |= {compiling[(key.number + turn) % len(compiling)]}
    return SharedRound(key, form, relations, seed, turn)


@lru_cache(maxsize=8)
def _order(domain: Domain, seed: int, covered: frozenset[int]) -> tuple[CompileKey, ...]:
    """Return all compile keys of a domain in a seeded order: pairs of values come early, ``covered`` keys last.

    Pairs of features come first, each in a key with few others, because a target may refuse some. Those of served
    models come early too: one in ``SERVED`` until each model has had its turn, then one in ``SERVED_LATER``.
    """
    pool = key_pool(domain)
    shuffled = [pool[index] for index in Stream(seed, _KEYS).permutation(len(pool)).tolist()]
    last = tuple(key for key in shuffled if key.number in covered)
    new = [key for key in shuffled if key.number not in covered]
    plain = plain_pairs(new)
    plain_keys = {*plain}
    first = (*plain, *pairs_first([key for key in new if key not in plain_keys], plain))
    served = _each_model_first([place for place, key in enumerate(first) if serves(key)], first)
    others = iter([place for place, key in enumerate(first) if not serves(key)])
    models = len({(first[place].head_size, first[place].num_queries_per_kv) for place in served})
    places: list[int] = []
    for number, place in enumerate(served):
        places += [*islice(others, (SERVED if number < models else SERVED_LATER) - 1), place]
    return (*(first[place] for place in (*places, *others)), *last)


def may_play(shared: SharedRound, domain: Domain, excludes: ExcludesKey | None) -> bool:
    """Return whether a shared round lies within what is left of a domain after what the target refuses."""
    if excludes is not None and excludes(shared.key):
        return False
    try:
        check_key(shared.key, domain=domain)
    except InvalidArgument:
        return False
    return True


def drawing_of_round(
    domain: Domain,
    round_seed: int,
    size: RoundSize,
    excludes: ExcludesKey | None = None,
    covered: Collection[int] = (),
) -> Drawing:
    """Return what a round draws; see :func:`keys_of_round`."""
    keys, layouts = (
        keys_of_round(domain, round_seed, size.keys, excludes, covered),
        layouts_of_round(domain, round_seed, size.layouts),
    )
    strategy = with_choices(cases(domain, keys=keys, layouts=layouts, variants=round_seed))
    return Drawing(strategy, relations_of_round(round_seed, size.compiling, domain))


def drawing_of_shared(domain: Domain, shared: SharedRound) -> Drawing:
    """Return what a shared round draws."""
    return Drawing(with_choices(cases(domain, keys=(shared.key,), form=shared.form)), shared.relations)


def keys_of_round(
    domain: Domain,
    round_seed: int,
    count: int,
    excludes: ExcludesKey | None = None,
    covered: Collection[int] = (),
) -> tuple[CompileKey, ...]:
    """Return the compile keys of one round: a seeded sample of the pool that always has the simplest key.

    A round draws several cases for each key, because lowering or compiling a new key costs as much as many cases. Keys
    whose numbers are ``covered`` are only taken where there are too few others. One in ``SERVED`` is a key of a served
    model, each of another model as long as there are some, those that most people serve among them. One in ``FREED`` of
    the others has sizes that stand in no table.
    """
    pool = key_pool(domain)
    if excludes is not None:
        pool = tuple(key for key in pool if not excludes(key)) or pool
    order: list[int] = Stream(round_seed, _KEYS).permutation(len(pool)).tolist()
    if covered:
        order.sort(key=lambda index: pool[index].number in covered)
    served = _each_model_first([index for index in order if serves(pool[index])], pool)
    chosen = served[: count // SERVED]
    others = [*(index for index in order if not serves(pool[index])), *served[len(chosen) :]][: count - len(chosen)]
    freed = others[FREED - 1 :: FREED]
    kept = [pool[index] for index in sorted({0, *chosen, *others} - {*freed})]
    random = Random(round_seed)  # noqa: S311 - nothing secret
    return (*kept, *dict.fromkeys(_freed(pool[index], domain, random, excludes) for index in freed))


def _freed(key: CompileKey, domain: Domain, random: Random, excludes: ExcludesKey | None) -> CompileKey:
    """Return the key with any sizes of the domain, or itself where a campaign does not want these."""
    free = with_free_sizes(key, domain, Sample(random))
    return key if excludes is not None and excludes(free) else free


def _each_model_first(places: Sequence[int], pool: Sequence[CompileKey]) -> list[int]:
    """Return places of a pool in their order, but the first one of each model before all others, known models first."""
    models = {(pool[place].head_size, pool[place].num_queries_per_kv): place for place in reversed(places)}
    known = {place for model, place in models.items() if model in MODELS}
    first = set(models.values())
    return sorted(places, key=lambda place: (place not in known, place not in first))


def uncovered(domain: Domain, covered: Collection[int]) -> tuple[int, int]:
    """Return how many compile keys of a domain are not covered, and how many there are."""
    pool = key_pool(domain)
    return sum(key.number not in covered for key in pool), len(pool)


def layouts_of_round(domain: Domain, round_seed: int, count: int | None) -> tuple[Strides, ...] | None:
    """Return the strided layouts of one round: a seeded sample of those that cover all pairs, None for any layout."""
    if count is None:
        return None
    pool = layout_pool(family=domain.family, inner_strides=domain.allows("inner_strides"))
    return tuple(pool[index] for index in Stream(round_seed, _LAYOUTS).permutation(len(pool))[:count].tolist())


def relations_of_round(round_seed: int, count: int | None, domain: Domain) -> frozenset[str]:
    """Return the relations of one round: all that need no other kernel, and a seeded sample of those that do."""
    compiling = _compiling_relations(domain)
    sample = Stream(round_seed, _RELATIONS).permutation(len(compiling))[:count].tolist()
    others = (name for name, relation in RELATIONS.items() if not relation.compiles)
    return frozenset((*others, *(compiling[index] for index in sample)))


def _compiling_relations(domain: Domain) -> list[str]:
    tuned = domain.configurations > 1  # without, what is drawn must not depend on a relation that never holds
    compiling = (relation.name for relation in RELATIONS.values() if relation.compiles)
    return [name for name in compiling if tuned or name != "configurations"]
