"""Serving: the compile keys of served models, and the batches that schedulers make."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import inf, sqrt
from random import Random
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from hypothesis import strategies as st

from fuzz_attn.case import serving
from fuzz_attn.case.aspects import COMPILED_FEATURES, Feature
from fuzz_attn.case.attention_case import CompileKey
from fuzz_attn.case.domain import Domain, within
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import DTypes, LaunchHints, Sequence
from fuzz_attn.case.serving import (
    FEWEST_BESIDE,
    FEWEST_NEW_TOKENS,
    FEWEST_SEQUENCES,
    LEAST_CONTEXT,
    LEAST_KEYS,
    LEAST_KEYS_BESIDE,
)
from fuzz_attn.strategies.draws import composite, sampled_from
from fuzz_attn.strategies.dtypes import fp8_dtypes, plain_dtypes
from fuzz_attn.strategies.heads import head_allowed, value_allowed
from fuzz_attn.strategies.launches import launch_paths, tile_allowed, tile_sizes

MODELS: Final = ((128, 4), (128, 8), (128, 5), (128, 1), (64, 8), (96, 1))
"""Head and group of models that many people serve; all other combinations have a fifth of the keys."""
OTHER_MODELS: Final = 0.2
PAGES: Final = (16, 16, 16, 16, 32, 32, 64, 64, 128, 128)
"""Page sizes; 16 is the usual default."""
TYPES: Final = ("bfloat16",) * 3 + ("float16",) * 2
FEATURE: Final = 0.4
"""The share of the keys with a feature. Most models have none, or one."""
HINTED: Final = 0.4
"""The share of the keys that ask for a path, and of those that ask for a tile."""
SERVED_SEGMENTS: Final = (8, 16)
FP8_CACHE: Final = 0.25

T = TypeVar("T")


class _Choices:
    """Choices that are the same in every process."""

    def __init__(self) -> None:
        self._random = Random(0).random  # noqa: S311 - nothing secret

    def one_of(self, values: tuple[T, ...]) -> T:
        """Return one of the values, each as likely."""
        return values[int(self._random() * len(values))]

    def happens(self, share: float) -> bool:
        """Return True in a share of the calls."""
        return self._random() < share


def serving_keys(domain: Domain, count: int) -> tuple[CompileKey, ...]:
    """Return compile keys of served models within a domain, at most ``count``; none where it has no such sizes."""
    found: dict[CompileKey, None] = {}
    keys = _keys(domain)
    for _ in range(4 * count):
        key = next(keys, None)
        if key is None or len(found) == count:
            break
        if domain.excludes(key.features) is None:
            found.setdefault(key)
    return tuple(found)


def _keys(domain: Domain) -> Iterator[CompileKey]:
    """Yield keys without end; none where the domain has no such sizes."""
    sizes = (1,) if FAMILIES[domain.family].cache.is_packed else PAGES
    pages = tuple(page for page in sizes if within(page, domain.block_sizes))
    models = [model for model in MODELS if _has(model, domain)]
    others = [pair for pair in product(serving.HEAD_SIZES, serving.GROUP_SIZES) if _has(pair, domain)]
    others = [pair for pair in others if pair not in models]
    types = _types(domain)
    if not (pages and any(types) and (models or others)):
        return
    choices = _Choices()
    while True:
        pairs = models if models and (not others or not choices.happens(OTHER_MODELS)) else others
        head_size, group = choices.one_of(tuple(pairs))
        dtypes = choices.one_of(types[choices.happens(FP8_CACHE) and bool(types[1])] or types[1])
        if not head_allowed(head_size, dtypes=dtypes, domain=domain):
            continue
        yield CompileKey(
            family=domain.family,
            dtypes=dtypes,
            num_queries_per_kv=group,
            head_size=head_size,
            block_size=choices.one_of(pages),
            launch=_launch(choices, dtypes, domain),
            compiled=_features(choices, domain),
        )


def _has(pair: tuple[int, int], domain: Domain) -> bool:
    """Return whether a domain has a head size and a group size."""
    types = (*plain_dtypes(domain), *fp8_dtypes(domain))
    splits = any(head_allowed(pair[0], dtypes=each, domain=domain) for each in types)
    sized = within(pair[0], domain.head_sizes) and value_allowed(0, pair[0], domain=domain)
    return sized and within(pair[1], domain.group_sizes) and splits


def _types(domain: Domain) -> tuple[tuple[DTypes, ...], tuple[DTypes, ...]]:
    """Return the types of served models in a domain, without and with fp8 caches; bfloat16 is more frequent."""
    half = [each for name in TYPES for each in plain_dtypes(domain) if each.q == name]
    small = [each for name in TYPES for each in fp8_dtypes(domain) if each.q == each.out == name]
    return tuple(half), tuple(each for each in small if each.kv != each.q)


def _features(choices: _Choices, domain: Domain) -> tuple[Feature, ...]:
    """Return the compiled features of a key: mostly none or one."""
    allowed = tuple(name for name in COMPILED_FEATURES if domain.allows(name))
    found = set[Feature]()
    while allowed and choices.happens(FEATURE):
        found.add(choices.one_of(allowed))
    return tuple(name for name in allowed if name in found)


def _launch(choices: _Choices, dtypes: DTypes, domain: Domain) -> LaunchHints:
    paths = launch_paths(domain=domain)
    served = [each for each in paths if each.path != "3d" or each.num_segments in SERVED_SEGMENTS] or list(paths)
    launch = choices.one_of(tuple(served)) if choices.happens(HINTED) else paths[0]
    one_byte = dtypes.kv not in serving.HALF_TYPES
    tiles = tuple(tile for tile in tile_sizes(domain=domain) if tile_allowed(tile, one_byte=one_byte))
    tile = choices.one_of(tiles) if choices.happens(HINTED) else tiles[0]
    number = choices.one_of(tuple(range(domain.configurations))) if domain.configurations > 1 else 0
    return LaunchHints(launch.path, launch.num_segments, tile, configuration=number)


Kind: TypeAlias = Literal["decodes", "mixed", "chunk", "speculative"]

KEY_MS, PAIR_MS = 2e-5, 6e-7
"""About what a whole case takes for an element of a key, and for one of a pair of row and key, beside 7 ms."""
BUDGETS_MS = (4.0,) * 250 + (20.0,) * 5 + (60.0,)
"""What a batch may take by that."""
FEWEST_MS = 15.0
"""What the smallest batch of a kind may take; batches of other kinds are drawn where it takes more."""
UNEVEN = 1.12
"""How much more than the smallest batch of decodes a larger one may take at least, so that their lengths differ."""
MOST_PARTIAL = 2**25
"""Elements of the segments' partial outputs."""

_BUDGETS = sampled_from(BUDGETS_MS)
_FIRST = sampled_from((True, False))
_MEDIUM = (512, 513, 527, 528, 575, 600, 640, 767, 768, 1000, 1023, 1024, 1025, 1500, 2000, 2047, 2048, 2049)
_LENGTHS = (*_MEDIUM, 3000, 4095, 4096, 4097, 6000, 8000, 8191, 8192)
_BATCHES = (8, 8, 8, 9, 10, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 96, 127, 128, 129, 200, 255, 256)
_NEW_TOKENS = (64, 64, 65, 80, 100, 127, 128, 129, 200, 255, 256, 257, 384, 511, 512, 513, 1000, 1024, 1025, 2047, 2048)
_CONTEXTS = (256, 257, 271, 272, 300, 384, 500, 511, *_LENGTHS)
_PREFILLS = (64, 65, 79, 80, 96, 100, 127, 128, 129, 150, 192, 255, 256, 400, 511, 512)
_BESIDE = (4, 5, 6, 7, 8, 12, 15, 16, 31, 32)
_SHORT = (128, 129, 143, 144, 160, 191, 192, 255, 256, 257, 300, 400, *_LENGTHS)
_SPECULATIVE = sampled_from((2, 3, 4, 4, 5, 6, 8))
_SPECULATING = (1, 2, 3, 4, 5, 8, 9, 16, 32)


class _Price(NamedTuple):
    """What a key of a sequence costs, in milliseconds, and a pair of a query token and a key, in all heads."""

    key: float
    pair: float

    def keys(self, ms: float, query_len: int) -> int:
        """Return how many keys are affordable in sequences of ``query_len`` new tokens."""
        return int(ms / (self.key + query_len * self.pair))

    def tokens(self, ms: float, context_len: int) -> int:
        """Return how many new tokens are affordable on a context."""
        linear = self.key / self.pair + context_len
        return int((sqrt(linear * linear + 4 * ms / self.pair) - linear) / 2)

    def of(self, query_len: int, seq_len: int) -> float:
        """Return the price of a sequence."""
        return seq_len * (self.key + query_len * self.pair)


def _price(key: CompileKey, num_kv_heads: int) -> _Price:
    row = num_kv_heads * key.head_size
    return _Price(KEY_MS * row, PAIR_MS * row * key.num_queries_per_kv)


def may_serve(key: CompileKey, num_kv_heads: int) -> bool:
    """Return whether a key is one of a served model, with few enough heads for some batch of its family."""
    if not serving.serves(key) or _most_tokens(key, num_kv_heads) < FEWEST_NEW_TOKENS:
        return False
    return bool(_kinds(key, num_kv_heads, FEWEST_MS))


def _most_tokens(key: CompileKey, num_kv_heads: int) -> int:
    """Return how many query tokens may have partial outputs of all segments."""
    heads = num_kv_heads * key.num_queries_per_kv << (key.head_size - 1).bit_length()
    return MOST_PARTIAL // (heads * max(1, key.launch.num_segments))


def serving_batches(*, key: CompileKey, num_kv_heads: int = 1) -> st.SearchStrategy[tuple[Sequence, ...]]:
    """Return a strategy of batches as schedulers make them; shrinks towards a small one.

    One in 40 is several times as large.
    """
    return _serving_batches(key, num_kv_heads)


@composite
def _serving_batches(draw: st.DrawFn, key: CompileKey, num_kv_heads: int) -> tuple[Sequence, ...]:
    price, most = _price(key, num_kv_heads), _most_tokens(key, num_kv_heads)
    ms = draw(_BUDGETS)
    kind = draw(_one_of(_kinds(key, num_kv_heads, max(ms, FEWEST_MS)) or _kinds(key, num_kv_heads, inf)))
    if kind == "chunk":
        query_len = draw(_at_most(_NEW_TOKENS, min(most, price.tokens(ms, _CONTEXTS[0]))))
        return (Sequence(query_len, draw(_at_most(_CONTEXTS, price.keys(ms, query_len) - query_len))),)
    if kind == "decodes":
        most = price.keys(max(ms, UNEVEN * _least("decodes", price)), 1)
        return _shared_out(draw, 1, _BATCHES, _LENGTHS, most)
    if kind == "speculative":
        query_len = draw(_SPECULATIVE)
        return _shared_out(draw, query_len, _SPECULATING, _LENGTHS, price.keys(ms, query_len))
    prefill = draw(_at_most(_PREFILLS, min(most, price.tokens(ms / 2, 0))))
    decodes = _shared_out(draw, 1, _BESIDE, _SHORT, price.keys(ms - price.of(prefill, prefill), 1))
    return (Sequence(prefill), *decodes) if draw(_FIRST) else (*decodes, Sequence(prefill))


def _shared_out(
    draw: st.DrawFn, query_len: int, counts: tuple[int, ...], table: tuple[int, ...], most: int
) -> tuple[Sequence, ...]:
    """Return sequences with lengths of a table that have at most ``most`` keys together, or as few as possible."""
    count = draw(_at_most(counts, most // table[0]))
    left, found = most, []
    for others in reversed(range(count)):
        length = draw(_at_most(table, left - others * table[0]))
        left -= length
        found.append(Sequence(query_len, length - query_len))
    return tuple(found)


def _least(kind: Kind, price: _Price) -> float:
    """Return the price of the smallest batch of a kind."""
    if kind == "decodes":
        return FEWEST_SEQUENCES * price.of(1, LEAST_KEYS)
    if kind == "speculative":
        return price.of(2, LEAST_KEYS)
    if kind == "chunk":
        return price.of(FEWEST_NEW_TOKENS, FEWEST_NEW_TOKENS + LEAST_CONTEXT)
    return price.of(FEWEST_NEW_TOKENS, FEWEST_NEW_TOKENS) + FEWEST_BESIDE * price.of(1, LEAST_KEYS_BESIDE)


@lru_cache(maxsize=4096)
def _kinds(key: CompileKey, num_kv_heads: int, most: float) -> tuple[Kind, ...]:
    """Return the kinds of batches that a key's kernels do not skip and whose smallest takes at most ``most``."""
    price = _price(key, num_kv_heads)
    kinds: tuple[Kind, ...] = ("speculative", "mixed", "chunk", "decodes")
    if FAMILIES[key.family].one_token_each:
        kinds = ("decodes", "mixed") if key.has("filter_by_query_len") else ("decodes",)
    elif key.has("filter_by_query_len"):
        kinds = ("speculative", "mixed", "chunk")
    return tuple(kind for kind in kinds if _least(kind, price) <= most)


_one_of = lru_cache(maxsize=64)(sampled_from)


@lru_cache(maxsize=4096)
def _at_most(table: tuple[int, ...], most: int) -> st.SearchStrategy[int]:
    """Return a strategy of the entries of a table up to a size, at least of its first."""
    return sampled_from([entry for entry in table if entry <= most] or table[:1])
