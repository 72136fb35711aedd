"""Compile keys: a bounded pool of what kernels are compiled for, and keys of sizes that stand in no table of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from heapq import heapify, heappop, heapreplace
from itertools import combinations
from operator import eq
from typing import Any, NamedTuple, TypeAlias

import msgspec
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.aspects import COMPILED_FEATURES, FEATURES, MASK_FEATURES, Feature, fp8_features
from fuzz_attn.case.attention_case import CompileKey
from fuzz_attn.case.domain import Domain, within
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import DTypes, LaunchHints
from fuzz_attn.case.recipes import CAUSAL
from fuzz_attn.strategies.covering_arrays import pairwise
from fuzz_attn.strategies.draws import Sample, composite, draw_index, free_size, indices, sampled_from
from fuzz_attn.strategies.dtypes import fp8_dtypes, mixed_dtypes, one_byte_operands, plain_dtypes, simpler_dtypes
from fuzz_attn.strategies.features import mask_kinds
from fuzz_attn.strategies.heads import (
    SIMPLER_GROUP_SIZES,
    SIMPLER_HEAD_SIZES,
    SIMPLER_VALUE_SIZES,
    group_sizes,
    head_allowed,
    head_sizes,
    value_allowed,
    value_sizes,
)
from fuzz_attn.strategies.launches import (
    launch_paths,
    optional_arguments,
    stage_counts,
    tile_allowed,
    tile_sizes,
    warp_counts,
)
from fuzz_attn.strategies.memory_layouts import SIMPLER_BLOCK_SIZES, block_sizes
from fuzz_attn.strategies.serving import serving_keys

Values: TypeAlias = dict[str, Any]
ValueOfField: TypeAlias = tuple[str, Any]

_NO_FIELDS = ("compiled", "launch", "value_size", "mask")
"""Fields of a key that are several values, or a value only where they are not 0."""

_OPTIONS = ("num_warps", "num_stages", "configuration", "arguments")
"""Launch hints that a key has only in some domains."""

_DTYPES, _HEAD_SIZE = 0, 1
"""The indices of two axes that restrict each other in split caches."""

MIXED_KEYS = 5
"""Keys of each mixed combination of types: few, because there are many combinations."""

MIXED_STEP = 13
"""Keys between those of two consecutive mixed combinations, so that they differ in other fields too."""

_USUAL_FLAGS: Values = {name: False for name in COMPILED_FEATURES if FEATURES[name].published}
"""The compiled features that keys of most domains have or not; one that a target must declare counts where it is on."""

TILE_WEIGHTS = {16: 9, 128: 1}
USUAL_TILE_WEIGHT = 3
"""The smallest tiles have most edges. A tile of 128 keys costs most, also where a sequence is short."""

SERVED = 5
"""For this many keys of the pool, there is one more with the types and sizes of a served model."""

MANY_SEGMENTS = 16

MAX_SIMPLER = 4
_SIMPLIFY = indices(512)
"""Only the first ``MAX_SIMPLER`` choices may simplify a field, so that few cases leave the pool."""

_FREE = sampled_from((False, True, True))


class Axis(NamedTuple):
    """One field of a key: its values in the domain, simplest first, and what each may shrink to.

    ``weight`` is how often a value is taken where the covering array leaves a choice.
    """

    name: str
    values: tuple[Any, ...]
    weight: Callable[[Any], int]
    simpler: Callable[[Any], tuple[Any, ...]]


@lru_cache(maxsize=64)
def key_pool(domain: Domain) -> tuple[CompileKey, ...]:
    """Return the compile keys that cases of a domain use, from the simplest to the most complex.

    Every pair of values of two fields occurs in some key; the fields are dtypes, group, head size, block size, the
    compiled features, path with segments, and tile. The keys without fp8 cover all their pairs without the others, as
    their error bounds are the tightest. A few more keys have mixed types, and every sixth has the types and sizes of a
    served model (:mod:`fuzz_attn.case.serving`), as far as the domain has them. The pool depends only on the domain.
    """
    axes = _axes(domain)
    keys = {
        each
        for dtypes in (plain_dtypes(domain), fp8_dtypes(domain))
        if dtypes
        for key in _covering(axes, dtypes, domain)
        for each in supported_keys(key, domain)
    }
    if not keys:
        raise InvalidArgument(f"{domain} excludes all combinations of its types")
    mixed = _mixed(sorted(keys, key=lambda key: _complexity(key, axes)), domain)
    keys.update(each for key in mixed for each in supported_keys(key, domain))
    keys.update(serving_keys(domain, len(keys) // SERVED))
    return tuple(sorted(keys, key=lambda key: _complexity(key, axes)))


def supported_keys(key: CompileKey, domain: Domain) -> Iterator[CompileKey]:
    """Yield a key, or in its place keys without excluded combinations: each lacks another feature of a combination.

    A pair of values of the key that is not excluded itself is in one of them.
    """
    combination = domain.excludes(key.features)
    if combination is None:
        yield key
        return
    for feature in sorted(combination):
        for fewer in _without(key, feature, domain):
            yield from supported_keys(fewer, domain)


def _without(key: CompileKey, feature: Feature, domain: Domain) -> Iterator[CompileKey]:
    """Yield the key without one feature; one of types leaves it with the most similar types of the domain."""
    if key.has(feature):
        yield msgspec.structs.replace(key, compiled=tuple(each for each in key.compiled if each != feature))
        return
    if feature in MASK_FEATURES[key.mask]:
        yield msgspec.structs.replace(key, mask=CAUSAL.kind)
        return
    fewer = fp8_features(key.dtypes) - {feature}
    found = [each for each in (*plain_dtypes(domain), *fp8_dtypes(domain)) if fp8_features(each) <= fewer]
    if found:
        own = msgspec.structs.astuple(key.dtypes)
        alike = max(found, key=lambda each: sum(map(eq, msgspec.structs.astuple(each), own)))
        yield msgspec.structs.replace(key, dtypes=alike)


def compile_keys(
    *,
    domain: Domain = Domain(),  # noqa: B008 (frozen)
    keys: Iterable[CompileKey] | None = None,
    simpler: bool = True,
) -> st.SearchStrategy[CompileKey]:
    """Return a strategy of compile keys of a domain; shrinks towards float32, group 1, head and page of 16, no feature.

    Nearly all draws are keys of the pool, or of ``keys`` where given. The rest are such keys with single fields
    simplified, so that shrinking drops one feature after the other; without ``simpler`` there are no others.
    """
    if keys is None:
        key_pool(domain)
        return _compile_keys(domain, None, simpler)
    chosen = tuple(sorted(set(keys), key=lambda key: _complexity(key, _axes(domain))))
    if not chosen:
        raise InvalidArgument("keys=() must hold at least one compile key")
    for key in chosen:
        check_key(key, domain=domain)
    return _compile_keys(domain, chosen, simpler)


def check_key(key: CompileKey, *, domain: Domain) -> None:
    """Raise InvalidArgument unless a compile key lies within a domain."""
    segments = within(key.launch.num_segments, domain.segments) if key.launch.path == "3d" else True
    known = {
        "dtypes": key.dtypes in (*plain_dtypes(domain), *fp8_dtypes(domain), *mixed_dtypes(domain)),
        "num_queries_per_kv": within(key.num_queries_per_kv, domain.group_sizes),
        "family": key.family == domain.family,
        "head_size": within(key.head_size, domain.head_sizes)
        and head_allowed(key.head_size, dtypes=key.dtypes, domain=domain),
        "value_size": (not key.value_size or domain.allows("head_size_v"))
        and value_allowed(key.value_size, key.head_size, domain=domain),
        "block_size": within(key.block_size, domain.block_sizes),
        "launch": key.launch.path in domain.paths
        and segments
        and key.launch.tile_size in tile_sizes(domain=domain)
        and key.launch.num_warps in warp_counts(domain=domain)
        and key.launch.num_stages in stage_counts(domain=domain)
        and key.launch.configuration < domain.configurations
        and key.launch.arguments in optional_arguments(domain=domain)
        and tile_allowed(key.launch.tile_size, one_byte=one_byte_operands(key.dtypes)),
    }
    known["mask"] = key.mask in mask_kinds(domain=domain)
    known["compiled"] = all(map(domain.allows, key.compiled))
    known["features"] = domain.excludes(key.features) is None
    for name, allowed in known.items():
        if not allowed:
            raise InvalidArgument(f"key.{name}={getattr(key, name)} lies outside of {domain}")


@composite
def _compile_keys(draw: st.DrawFn, domain: Domain, keys: tuple[CompileKey, ...] | None, simpler: bool) -> CompileKey:
    pool = keys or key_pool(domain)
    key = pool[draw_index(draw, len(pool))]
    for axis in _axes(domain) if simpler else ():
        # Drawn for simple fields too: the shrinker needs the same choices for every key.
        choice = draw(_SIMPLIFY)
        if choice < MAX_SIMPLER:
            key = _simplified(key, axis, choice, domain)
    return key


def _simplified(key: CompileKey, axis: Axis, choice: int, domain: Domain) -> CompileKey:
    values = values_of_key(key)
    simpler = axis.simpler(values.get(axis.name, axis.values[0]))
    if choice >= len(simpler):
        return key
    values |= {axis.name: simpler[choice]}
    fits = value_allowed(values.get("value_size", 0), values["head_size"], domain=domain)
    if not fits or not _splits(values["head_size"], values["dtypes"], domain):
        return key
    simplified = _key(values, domain)
    return key if domain.excludes(simplified.features) else simplified


@lru_cache(maxsize=64)
def values_in(domain: Domain) -> Mapping[str, tuple[Any, ...]]:
    """Return the values of each field of a domain's keys, the simplest first, without mixed types."""
    flags: dict[str, tuple[Any, ...]] = {
        flag: (False, True) if domain.allows(flag) else (False,) for flag in COMPILED_FEATURES
    }
    heads, values = head_sizes(domain=domain), value_sizes(domain=domain)
    pairs = [(head, value) for head in heads for value in values if value_allowed(value, head, domain=domain)]
    return {
        "dtypes": (*plain_dtypes(domain), *fp8_dtypes(domain)),
        "head_size": tuple(dict.fromkeys(head for head, _ in pairs)),
        "block_size": block_sizes(domain=domain),
        "num_queries_per_kv": group_sizes(domain=domain),
        "value_size": tuple(value for value in values if any(value == other for _, other in pairs)),
        **flags,
        "mask": mask_kinds(domain=domain),
        "launch": launch_paths(domain=domain),
        "num_warps": warp_counts(domain=domain),
        "num_stages": stage_counts(domain=domain),
        "configuration": tuple(range(domain.configurations)),
        "arguments": optional_arguments(domain=domain),
        "tile_size": tile_sizes(domain=domain),
    }


@lru_cache(maxsize=64)
def _axes(domain: Domain) -> tuple[Axis, ...]:
    """Return the axes of a domain's keys; the dtypes come first, the tiles last."""
    values = values_in(domain)

    def axis(name: str, preferred: int | tuple[Any, ...], weight: Callable[[Any], int] = _evenly) -> Axis:
        return _axis(name, values[name], values[name][:preferred] if isinstance(preferred, int) else preferred, weight)

    masks, sizes = axis("mask", MAX_SIMPLER), axis("value_size", SIMPLER_VALUE_SIZES, _value_weight)
    options = (
        *(axis(name, 1, _option_weight) for name in ("num_warps", "num_stages")),
        *(axis(name, 1) for name in ("configuration", "arguments")),
    )
    return (
        Axis("dtypes", (*values["dtypes"], *mixed_dtypes(domain)), _evenly, partial(simpler_dtypes, domain=domain)),
        axis("head_size", SIMPLER_HEAD_SIZES),
        axis("block_size", SIMPLER_BLOCK_SIZES),
        axis("num_queries_per_kv", SIMPLER_GROUP_SIZES, lambda group: max(1, 6 - group)),
        *([sizes] if len(sizes.values) > 1 else ()),
        *(axis(flag, (), lambda on: 1 if on else 2) for flag in _flags(domain)),
        *([masks] if len(masks.values) > 1 else ()),
        axis("launch", MAX_SIMPLER, _launch_weight),
        *(each for each in options if len(each.values) > 1),
        axis("tile_size", 1, lambda tile: TILE_WEIGHTS.get(tile, USUAL_TILE_WEIGHT)),
    )


def _flags(domain: Domain) -> Iterator[Feature]:
    """Yield the compiled features that are axes: the published ones, and of the others those of the domain."""
    yield from (name for name in COMPILED_FEATURES if name in _USUAL_FLAGS or domain.allows(name))


def _value_weight(size: int) -> int:
    """Return the weight of a size of values: that of keys is taken wherever no pair of sizes is left to cover."""
    return 1 if size else 400


def _option_weight(option: int) -> int:
    """Return the weight of an option of the compiler; the launcher's own choice is what runs in production."""
    return 1 if option else 12


def _launch_weight(hints: LaunchHints) -> int:
    """Return the weight of a path: the more segments a launch has, the more it costs."""
    if hints.path != "3d":
        return 90
    return 1 if hints.num_segments > MANY_SEGMENTS else 3


def _evenly(_: object) -> int:
    return 1


def _axis(
    name: str, values: tuple[Any, ...], preferred: tuple[Any, ...], weight: Callable[[Any], int] = _evenly
) -> Axis:
    """Return an axis that shrinks to its first value, or to the preferred values that the domain has."""
    simplest_first = tuple(dict.fromkeys((values[0], *(value for value in preferred if value in values))))

    def simpler(value: Any) -> tuple[Any, ...]:
        known = simplest_first.index(value) if value in simplest_first else MAX_SIMPLER
        return simplest_first[: min(known, MAX_SIMPLER)]

    return Axis(name, values, weight, simpler)


def _covering(axes: tuple[Axis, ...], dtypes: tuple[DTypes, ...], domain: Domain) -> Iterable[CompileKey]:
    tiles = [tile for tile in axes[-1].values if any(_fits(tile, combination) for combination in dtypes)]
    heads = [size for size in axes[_HEAD_SIZE].values if any(_splits(size, each, domain) for each in dtypes)]
    columns: list[Sequence[Any]] = [dtypes, heads, *(axis.values for axis in axes[_HEAD_SIZE + 1 : -1]), tiles]
    last = len(columns) - 1

    def allowed(axis: int, value: int, other: int, other_value: int) -> bool:
        if axis == _HEAD_SIZE and other == place:
            return value_allowed(axes[place].values[other_value], heads[value], domain=domain)
        if axis != _DTYPES:
            return True
        if other == _HEAD_SIZE:
            return _splits(heads[other_value], dtypes[value], domain)
        return other != last or _fits(tiles[other_value], dtypes[value])

    place = next((place for place, axis in enumerate(axes) if axis.name == "value_size"), -1)
    weights = [[axis.weight(value) for value in column] for axis, column in zip(axes, columns, strict=True)]
    for row in pairwise(weights, allowed=allowed):
        yield _key({axis.name: column[value] for axis, column, value in zip(axes, columns, row, strict=True)}, domain)


def _mixed(keys: Sequence[CompileKey], domain: Domain) -> Iterable[CompileKey]:
    """Yield ``MIXED_KEYS`` keys for each mixed combination of types: evenly spread keys with their types replaced."""
    for number, dtypes in enumerate(mixed_dtypes(domain)):
        sizes = {size for size in {key.head_size for key in keys} if _splits(size, dtypes, domain)}
        tiles = {tile for tile in {key.launch.tile_size for key in keys} if _fits(tile, dtypes)}
        fitting = [key for key in keys if key.head_size in sizes and key.launch.tile_size in tiles]
        for step in range(MIXED_KEYS):
            place = (step * len(fitting) // MIXED_KEYS + MIXED_STEP * number) % len(fitting)
            yield msgspec.structs.replace(fitting[place], dtypes=dtypes)


def _splits(head_size: int, dtypes: DTypes, domain: Domain) -> bool:
    return head_allowed(head_size, dtypes=dtypes, domain=domain)


def _fits(tile: int, dtypes: DTypes) -> bool:
    return tile_allowed(tile, one_byte=one_byte_operands(dtypes))


def with_free_sizes(key: CompileKey, domain: Domain, sample: Sample) -> CompileKey:
    """Return the key with a page, a head, a group, segments and values of any size of the domain; a third of each stay.

    Two in three new sizes are as likely in each octave, as small sizes have most thresholds. The others are as likely
    anywhere in the domain.
    """
    piece = FAMILIES[key.family].cache.piece(key.dtypes.kv)
    sizes: dict[str, Any] = {
        "block_size": free_size(domain.block_sizes, 1, sample),
        "head_size": free_size(domain.head_sizes, piece, sample),
        "num_queries_per_kv": free_size(domain.group_sizes, 1, sample),
    }
    chosen = {name: size for name, size in sizes.items() if sample.draw(_FREE) and size}
    if key.launch.num_segments:
        chosen["launch"] = msgspec.structs.replace(key.launch, num_segments=free_size(domain.segments, 1, sample))
    if key.value_size:
        head_size, size = chosen.get("head_size", key.head_size), free_size(domain.value_sizes, 1, sample)
        fitting = [each for each in (size, min(size, head_size)) if value_allowed(each, head_size, domain=domain)]
        chosen |= {"value_size": fitting[0]} if fitting else {"head_size": key.head_size}
    elif not value_allowed(0, chosen.get("head_size", key.head_size), domain=domain):
        del chosen["head_size"]
    return msgspec.structs.replace(key, **chosen)


def plain_pairs(keys: Sequence[CompileKey]) -> tuple[CompileKey, ...]:
    """Return, in their order, a key for each feature and each pair of features: of those with both the plainest one.

    A mask and a path count as features. A target that refuses two features together refuses every key with both,
    and with it all other pairs of that key. A plain key has few others.
    """
    plainest: dict[tuple[str, ...], tuple[int, int]] = {}
    for place, key in enumerate(keys):
        usual = ("auto", CAUSAL.kind)
        names = sorted({*key.features, *(name for name in (key.launch.path, key.mask) if name not in usual)})
        for combination in (*combinations(names, 1), *combinations(names, 2)):
            plainest[combination] = min(plainest.get(combination, (len(names), place)), (len(names), place))
    return tuple(keys[place] for place in sorted({place for _, place in plainest.values()}))


def pairs_first(keys: Sequence[CompileKey], after: Sequence[CompileKey] = ()) -> tuple[CompileKey, ...]:
    """Return keys in an order in which new pairs of values come early: each has most of those that none before it has.

    They come ``after`` others. Among keys with as many, the earlier ones come first. Greedy, with gains that are only
    computed again where they may be the largest, because they never grow (Minoux 1978).
    """
    numbers: dict[ValueOfField, int] = {}  # of values, because their hashes take longer
    values = [
        [numbers.setdefault(each, len(numbers)) for each in values_of_key(key).items()] for key in (*after, *keys)
    ]
    every = [frozenset(combinations(each, 2)) for each in values]
    pairs, seen = every[len(after) :], set[object]().union(*every[: len(after)])
    gains = [(-len(each - seen), place) for place, each in enumerate(pairs)]
    heapify(gains)
    order = []
    while gains:
        gain, place = gains[0]
        now = -len(pairs[place] - seen)
        if now != gain:
            heapreplace(gains, (now, place))
            continue
        heappop(gains)
        seen |= pairs[place]
        order.append(keys[place])
    return tuple(order)


def value_pairs(key: CompileKey) -> frozenset[tuple[ValueOfField, ValueOfField]]:
    """Return all pairs of the values of two fields of a key; the key pool has every pair in some key."""
    values = [*values_of_key(key).items()]
    return frozenset(combinations(values, 2))


def values_of_key(key: CompileKey) -> Values:
    """Return the values of a key's fields; of mask and options of the compiler only those other than the usual."""
    hints = key.launch
    launch = LaunchHints(path=hints.path, num_segments=hints.num_segments)
    chosen = {name: getattr(hints, name) for name in _OPTIONS}
    options = {name: value for name, value in {**chosen, "value_size": key.value_size}.items() if value}
    flags: Values = _USUAL_FLAGS | dict.fromkeys(key.compiled, True)
    flags |= {"mask": key.mask} if key.mask != CAUSAL.kind else {}
    fields = {name: value for name, value in msgspec.structs.asdict(key).items() if name not in _NO_FIELDS}
    return {**fields, **flags, "launch": launch, "tile_size": hints.tile_size, **options}


def _key(values: Mapping[str, Any], domain: Domain) -> CompileKey:
    fields = {**values, "family": domain.family}
    launch, tile = fields.pop("launch"), fields.pop("tile_size")
    options = {name: fields.pop(name) for name in _OPTIONS if name in fields}
    hints = LaunchHints(path=launch.path, num_segments=launch.num_segments, tile_size=tile, **options)
    compiled = tuple(name for name in COMPILED_FEATURES if fields.pop(name, False))
    return CompileKey(launch=hints, compiled=compiled, **fields)


def _complexity(key: CompileKey, axes: tuple[Axis, ...]) -> tuple[int, ...]:
    values = values_of_key(key)
    found = [(axis.values, values.get(axis.name, axis.values[0])) for axis in axes]
    ranks = [known.index(value) if value in known else 99 for known, value in found]
    return (sum(rank > 0 for rank in ranks), *ranks)
