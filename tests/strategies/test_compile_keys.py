"""Compile keys: what the pool covers, that it is the same in every process, and how keys are drawn and shrunk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import combinations, product
from random import Random
from typing import Any

import pytest
from hypothesis.errors import InvalidArgument

from fuzz_attn.case.aspects import Feature, is_mixed
from fuzz_attn.case.attention_case import CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import DTypes, LaunchHints, is_fp8
from fuzz_attn.strategies.compile_keys import MIXED_KEYS, check_key, compile_keys, key_pool, with_free_sizes
from fuzz_attn.strategies.draws import Sample
from fuzz_attn.strategies.dtypes import mixed_dtypes
from fuzz_attn.strategies.heads import GROUP_SIZES, HEAD_SIZES
from fuzz_attn.strategies.memory_layouts import BLOCK_SIZES

FULL = Domain(paths=("auto", "2d", "3d"), tile_hint=True)
BARE = Domain(features=frozenset(), dtypes=("bfloat16",), head_sizes=(64, 128), paths=("2d",))
DOMAINS = (FULL, Domain(), BARE, Domain(features=frozenset({"fp8_kv", "sinks"}), tile_hint=True))
EXCLUSIVE = Domain(
    excluded=(
        frozenset({"alibi", "sinks"}),
        frozenset({"fp8_kv", "window"}),
        frozenset({"window", "softcap", "qq_bias"}),
    )
)
FLAGS: tuple[Feature, ...] = ("window", "softcap", "alibi", "qq_bias", "sinks", "lse")
FIELDS = ("dtypes", "num_queries_per_kv", "head_size", "block_size", "value_size", *FLAGS)


def parts(key: CompileKey) -> tuple[Any, ...]:
    fields = (key.has(name) if name in FLAGS else getattr(key, name) for name in FIELDS)
    return (*fields, (key.launch.path, key.launch.num_segments), key.launch.tile_size)


def pairs(keys: tuple[CompileKey, ...]) -> set[tuple[Any, ...]]:
    rows = [parts(key) for key in keys]
    return {(i, row[i], j, row[j]) for row in rows for i, j in combinations(range(len(row)), 2)}


def possible(pair: tuple[Any, ...]) -> bool:
    """Return whether the pair may occur: tiles of 16 keys are too small for one-byte operands."""
    i, left, j, right = pair
    return (i, j) != (0, len(FIELDS) + 1) or right in (0, 32, 64) or not (is_fp8(left.q) or is_fp8(left.kv))


def expected_pairs(keys: tuple[CompileKey, ...]) -> set[tuple[Any, ...]]:
    columns = [{parts(key)[i] for key in keys} for i in range(len(FIELDS) + 2)]
    axes = combinations(range(len(columns)), 2)
    return {(i, a, j, b) for i, j in axes for a, b in product(columns[i], columns[j]) if possible((i, a, j, b))}


@pytest.mark.parametrize("domain", DOMAINS, ids=[f"domain{number}" for number in range(len(DOMAINS))])
def test_pool_covers_every_pair_of_values(domain: Domain) -> None:
    usual = tuple(key for key in key_pool(domain) if not is_mixed(key.dtypes))
    assert pairs(usual) == expected_pairs(usual)


@pytest.mark.parametrize("domain", DOMAINS, ids=[f"domain{number}" for number in range(len(DOMAINS))])
def test_pool_has_a_few_keys_of_each_mixed_combination_of_types(domain: Domain) -> None:
    mixed = [key.dtypes for key in key_pool(domain) if is_mixed(key.dtypes)]
    assert Counter(mixed) == dict.fromkeys(mixed_dtypes(domain), MIXED_KEYS)


def test_excluded_combinations_cost_no_other_pair() -> None:
    """A pair of Domain() is lost only where it is excluded itself."""
    kept = key_pool(EXCLUSIVE)
    assert not any(combination <= key.features for key in kept for combination in EXCLUSIVE.excluded)
    names = ("window", "softcap", "alibi", "qq_bias", "sinks", "fp8_kv", "fp8_q", "fp8_out")
    found = {pair for key in kept for pair in combinations(sorted(key.features), 2)}
    expected = {pair for key in key_pool(Domain()) for pair in combinations(sorted(key.features & set(names)), 2)}
    assert expected - found == {("alibi", "sinks"), ("fp8_kv", "window")}


def test_a_domain_that_excludes_all_its_types_is_refused() -> None:
    domain = Domain(
        cache_dtypes=("float8_e5m2",),
        output_dtypes=("float8_e5m2",),
        features=frozenset({"fp8_kv", "fp8_out"}),
        excluded=(frozenset({"fp8_kv", "fp8_out"}),),
    )
    with pytest.raises(InvalidArgument, match="excludes all combinations of its types"):
        key_pool(domain)


def test_values_may_have_no_size_of_keys(sample: Any) -> None:
    """Of latent caches whose rest of a head must not be empty; some sizes of values are larger than each head."""
    heads, values = (96, 192, 576), (64, 128, 600)
    domain = Domain("mla_decode", features=frozenset({"head_size_v"}), head_sizes=heads, value_sizes=values)
    allowed = {(head, value) for head in heads for value in values if value < head}
    assert {(key.head_size, key.value_size) for key in key_pool(domain)} == allowed
    for key in key_pool(domain):
        check_key(key, domain=domain)
    assert {(key.head_size, key.value_size) for key in sample(compile_keys(domain=domain), 200)} <= allowed
    free = [with_free_sizes(key, domain, Sample(Random(number))) for number, key in enumerate(key_pool(domain))]
    assert {(key.head_size, key.value_size) for key in free} == allowed


def test_keys_without_fp8_cover_every_pair_by_themselves() -> None:
    plain = tuple(key for key in key_pool(FULL) if key.dtypes.q == key.dtypes.kv == key.dtypes.out)
    assert pairs(plain) == expected_pairs(plain)


def test_pool_holds_every_value_of_the_lattices() -> None:
    pool = key_pool(FULL)
    assert {key.head_size for key in pool} == set(HEAD_SIZES)
    assert {key.num_queries_per_kv for key in pool} == set(GROUP_SIZES)
    assert {key.block_size for key in pool} == set(BLOCK_SIZES)
    assert {key.launch.num_segments for key in pool} == {0, 1, 2, 3, 4, 7, 8, 16, 64, 128}
    assert {key.launch.tile_size for key in pool} == {0, 16, 32, 64}


def test_every_type_occurs_as_query_cache_and_output() -> None:
    names = {"float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"}
    for field in ("q", "kv", "out"):
        assert {getattr(key.dtypes, field) for key in key_pool(FULL)} == names


def test_pool_goes_from_simple_to_complex() -> None:
    pool = key_pool(FULL)
    simplest = parts(CompileKey())
    distances = [sum(a != b for a, b in zip(parts(key), simplest, strict=True)) for key in pool]
    assert pool[0] == CompileKey()
    assert distances == sorted(distances)
    assert len(set(pool)) == len(pool)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("domain", DOMAINS, ids=[f"domain{number}" for number in range(len(DOMAINS))])
def test_each_key_of_the_pool_looks_at_every_value_once(domain: Domain) -> None:
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    key_pool.__wrapped__(domain)  # fills the caches below it
    sys.setprofile(count)
    try:
        pool = key_pool.__wrapped__(domain)
    finally:
        sys.setprofile(None)
    values = sum(len({parts(key)[i] for key in pool}) for i in range(len(FIELDS) + 2))
    # Python resumes two generators for each value that a key might take, and makes some calls for each of its axes.
    # Every two values are compared once. A search over several candidates for a key would multiply this.
    assert calls <= 4 * (len(pool) * values + values**2)


def test_pool_is_the_same_in_every_process() -> None:
    code = (
        "import hashlib, msgspec; from fuzz_attn.case.domain import Domain;"
        "from fuzz_attn.strategies.compile_keys import key_pool;"
        "pool = key_pool(Domain(paths=('auto', '2d', '3d'), tile_hint=True));"
        "print(hashlib.sha256(msgspec.json.encode(pool)).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1


def test_nearly_all_keys_come_from_the_pool_unchanged(sample: Any) -> None:
    pool = set(key_pool(FULL))
    drawn = sample(compile_keys(domain=FULL))
    assert sum(key in pool for key in drawn) / len(drawn) > 0.94


def test_drawn_keys_are_the_given_ones_or_simpler(sample: Any) -> None:
    chosen = key_pool(FULL)[400:410]
    drawn = sample(compile_keys(domain=FULL, keys=chosen))
    assert set(chosen) <= set(drawn)
    assert sum(key in chosen for key in drawn) / len(drawn) > 0.9


@pytest.mark.parametrize("domain", DOMAINS, ids=[f"domain{number}" for number in range(len(DOMAINS))])
def test_shrinks_towards_the_simplest_key(minimal: Any, domain: Domain) -> None:
    assert minimal(compile_keys(domain=domain)) == key_pool(domain)[0]


def test_shrinks_from_a_complex_key_to_the_simplest(minimal: Any) -> None:
    assert minimal(compile_keys(domain=FULL, keys=key_pool(FULL)[-1:])) == CompileKey()


@pytest.mark.parametrize("flag", ["window", "softcap", "alibi", "qq_bias", "sinks"])
def test_shrinks_to_a_single_feature(minimal: Any, flag: Feature) -> None:
    assert minimal(compile_keys(domain=FULL), lambda key: key.has(flag)) == CompileKey(compiled=(flag,))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (lambda key: key.head_size % 16, CompileKey(head_size=8)),
        (lambda key: key.head_size % 16 and key.head_size > 16, CompileKey(head_size=24)),
        (lambda key: key.num_queries_per_kv > 16, CompileKey(num_queries_per_kv=17)),
        (lambda key: key.num_queries_per_kv & (key.num_queries_per_kv - 1), CompileKey(num_queries_per_kv=3)),
        (lambda key: key.block_size > 16 and key.block_size % 16, CompileKey(block_size=24)),
        (lambda key: key.launch.path == "2d", CompileKey(launch=LaunchHints(path="2d"))),
        (lambda key: key.launch.num_segments > 1, CompileKey(launch=LaunchHints(path="3d", num_segments=2))),
        (lambda key: key.launch.tile_size, CompileKey(launch=LaunchHints(tile_size=16))),
        (lambda key: key.dtypes.q == "bfloat16", CompileKey(dtypes=DTypes("bfloat16", "bfloat16", "bfloat16"))),
        (lambda key: key.dtypes.out == "float8_e5m2", CompileKey(dtypes=DTypes(out="float8_e5m2"))),
        (lambda key: key.dtypes.kv == "float8_e4m3fn", CompileKey(dtypes=DTypes(kv="float8_e4m3fn"))),
        (  # such a query may have a cache of either kind
            lambda key: key.dtypes.q == key.dtypes.kv == "float8_e4m3fn",
            CompileKey(dtypes=DTypes(q="float8_e4m3fn", kv="float8_e4m3fn")),
        ),
    ],
)
def test_shrinks_to_a_single_field(minimal: Any, condition: Any, expected: CompileKey) -> None:
    found = minimal(compile_keys(domain=FULL), condition)
    assert parts(found)[-1:] == parts(expected)[-1:] or found.launch.tile_size > 0
    assert parts(found)[:-1] == parts(expected)[:-1]


@pytest.mark.parametrize(
    ("domain", "key", "message"),
    [
        (Domain(features=frozenset()), CompileKey(compiled=("window",)), r"key\.compiled=.* lies outside"),
        (Domain(head_sizes=(32, 64)), CompileKey(), r"key\.head_size=16 lies outside"),
        (Domain(block_sizes=(8, 16, 32)), CompileKey(block_size=24), r"key\.block_size=24 lies outside"),
        (Domain(group_sizes=(1, 8)), CompileKey(num_queries_per_kv=9), r"key\.num_queries_per_kv=9 lies outside"),
        (Domain(), CompileKey(launch=LaunchHints(path="3d", num_segments=2)), r"key\.launch=.* lies outside"),
        (Domain(), CompileKey(launch=LaunchHints(tile_size=32)), r"key\.launch=.* lies outside"),
        (
            Domain(excluded=(frozenset({"window", "alibi"}),)),
            CompileKey(compiled=("window", "alibi")),
            r"key\.features=.*",
        ),
        (Domain(paths=("3d",), segments=(4, 4)), CompileKey(launch=LaunchHints("3d", 2)), r"key\.launch=.* lies"),
        (Domain(output_dtypes=("bfloat16",)), CompileKey(), r"key\.dtypes=.* lies outside"),
        (Domain(dtypes=("float16",)), CompileKey(), r"key\.dtypes=.* lies outside"),
        (
            Domain(tile_hint=True),
            CompileKey(dtypes=DTypes(kv="float8_e5m2"), launch=LaunchHints(tile_size=16)),
            r"key\.launch=.* lies outside",
        ),
    ],
)
def test_keys_outside_of_the_domain_are_refused(domain: Domain, key: CompileKey, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        compile_keys(domain=domain, keys=[key])


def test_an_empty_list_of_keys_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least one compile key"):
        compile_keys(keys=[])


def test_the_strategy_prints_itself_in_one_line() -> None:
    assert len(repr(compile_keys(domain=FULL))) < 1200
