"""Rounds: what a campaign draws, with no word on what becomes of it.

Cases are drawn in rounds, each with its own seed and its own sample of compile keys. As long as nothing fails, a round
depends on domain and seed alone, so that others than a campaign can walk through the same cases. Once one fails,
Hypothesis takes its choices over and shrinks it (:mod:`fuzz_attn.engine.shrinking`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple, TypeAlias

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.compile_key import CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.parts import Strides
from fuzz_attn.engine.shrinking import shrink
from fuzz_attn.inputs.random_bits import Stream
from fuzz_attn.properties.catalogue import RELATIONS, chosen
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.compile_keys import key_pool
from fuzz_attn.strategies.memory_layouts import layout_pool
from fuzz_attn.strategies.relation_choices import with_choices
from fuzz_attn.strategies.sampling.draws import Sample


class Size(NamedTuple):
    """How many cases a round makes, of how many compile keys, in how many strided layouts beside dense; None is all.

    ``compiling`` is how many of the relations that need a kernel of their own a round asks, beside all that need none.
    """

    cases: int
    keys: int
    layouts: int | None = None
    compiling: int | None = None


ON_CPU: Final = Size(cases=240, keys=40)
ON_GPU: Final = Size(cases=480, keys=4, layouts=1, compiling=1)
"""What is new is dearer on a GPU: 0.2 to 1.6 s for each kernel, where a case in a kernel known already takes 10 ms.

A key of ours is many kernels of Triton's, which compiles strides that are 1, or divisible by 16, apart, and each
combination of them. ``tests/benchmarks/bench_kernel_variants.py`` counts the cases for each kernel: 1.4 in rounds for a
CPU, 3.4 with 960 cases of 8 keys in all layouts, 8.0 so. Few keys at a time, since a round that the end of the time
cuts off has compiled most of its kernels and made few of its cases.
"""


class FoundError(Exception):
    """What an attempt raises of a case that fails, to have it shrunk; any other exception ends the round as it is."""


Attempt: TypeAlias = Callable[[AttentionCase, str | None], None]
"""What is done with each case and the relation asked of it."""

_KEYS: Final = 31
_LAYOUTS: Final = 32
_RELATIONS: Final = 33


def play(domain: Domain, round_seed: int, examples: int, attempt: Attempt, size: Size = ON_CPU) -> None:
    """Draw ``examples`` cases of one round and hand each to ``attempt``; the first that fails is shrunk."""
    keys, layouts = keys_of_round(domain, round_seed, size.keys), layouts_of_round(domain, round_seed, size.layouts)
    relations = relations_of_round(round_seed, size.compiling)
    strategy = with_choices(cases(domain, keys=keys, layouts=layouts))
    random = Random(round_seed)  # noqa: S311 (nothing secret)

    def asked(drawn: tuple[AttentionCase, int | None]) -> tuple[AttentionCase, str | None]:
        case, choice = drawn
        return case, None if choice is None else chosen(choice, case, domain, relations)

    for _ in range(examples):
        sample = Sample(random)
        order = asked(sample.draw(strategy))
        try:
            attempt(*order)
        except FoundError:
            shrink(strategy, sample.choices, lambda drawn: attempt(*asked(drawn)))
            raise


def keys_of_round(domain: Domain, round_seed: int, count: int) -> tuple[CompileKey, ...]:
    """Return the compile keys of one round: a seeded sample of the pool, the simplest key of all always in it.

    A round makes several cases of each, since what a new key costs (lowering or compiling it) is many times a case.
    """
    pool = key_pool(domain)
    chosen = Stream(round_seed, _KEYS).permutation(len(pool))[:count].tolist()
    return tuple(pool[index] for index in sorted({0, *chosen}))


def layouts_of_round(domain: Domain, round_seed: int, count: int | None) -> tuple[Strides, ...] | None:
    """Return the strided layouts of one round: a seeded sample of those that cover all pairs, None for any layout."""
    if count is None:
        return None
    pool = layout_pool(family=domain.family)
    return tuple(pool[index] for index in Stream(round_seed, _LAYOUTS).permutation(len(pool))[:count].tolist())


def relations_of_round(round_seed: int, compiling: int | None) -> frozenset[str]:
    """Return the relations of one round: all that need no other kernel, and a seeded sample of the others."""
    dear = [relation.name for relation in RELATIONS.values() if relation.compiles]
    asked = Stream(round_seed, _RELATIONS).permutation(len(dear))[:compiling].tolist()
    return frozenset(RELATIONS) - frozenset(dear) | {dear[index] for index in asked}


def derived_seed(campaign: int, shard: int, number: int) -> int:
    """Return the seed of one round of one shard: unrelated to those of all others."""
    text = f"{campaign}/{shard}/{number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big")
