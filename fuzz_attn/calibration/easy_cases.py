"""Easy cases: a few keys of nearly equal weights, so that each visible key and each factor shows in the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_size
from typing import Final, Literal, TypeAlias

from fuzz_attn.case.aspects import FEATURES_OF
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain, within
from fuzz_attn.case.dtypes import DTypeName
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import DTypes, HeadLayout, LaunchHints, PageLayout, Scales, Sequence
from fuzz_attn.case.recipes import AlibiRecipe, PoisonRecipe, SinkRecipe

Batch: TypeAlias = Literal["ragged", "decode", "fresh"]
"""``ragged`` has a sequence with several new tokens and a context; easier are only decode, and no context."""

_HEAD_SIZES: Final = (64, 128, 32, 16, 256)
_BLOCK_SIZES: Final = (16, 64, 32, 128, 256)
_VALUE_SIZES: Final = (32, 64, 16, 128, 8, 4, 2, 1)
_DTYPES: Final[tuple[DTypeName, ...]] = ("float16", "bfloat16", "float32")
_EASIER: Final[tuple[Batch, ...]] = ("decode", "fresh")
_GROUPS: Final = (2, 4, 8, 1)
WINDOW: Final = 2


@dataclass(frozen=True)
class Size:
    """The sizes, the type, the sequences and the configuration of the easy cases of one target."""

    head_size: int
    block_size: int
    group: int
    dtype: DTypeName
    batch: Batch = "ragged"
    value_size: int = 0
    configuration: int = 0


def sizes(domain: Domain) -> Iterator[Size]:
    """Yield sizes within a domain: the usual ones, then each of them changed by itself."""
    heads = _allowed(_HEAD_SIZES, domain.head_sizes)
    blocks = _allowed(_BLOCK_SIZES, domain.block_sizes)
    groups = _allowed(_GROUPS, domain.group_sizes)
    dtypes = [name for name in _DTYPES if name in domain.dtypes]
    batch: Batch = "fresh" if domain.no_context else "ragged"
    usual = Size(heads[0], blocks[0], groups[0], dtypes[0], batch, _values(heads[0], domain))
    yield usual
    others = sorted({1, domain.configurations - 1} & {*range(1, domain.configurations)})  # the first one may be wrong
    yield from (replace_size(usual, configuration=number) for number in others)
    yield from (replace_size(usual, batch=batch) for batch in _EASIER if not domain.no_context)
    yield from (replace_size(usual, dtype=dtype) for dtype in dtypes[1:])
    yield from (replace_size(usual, head_size=head, value_size=_values(head, domain)) for head in heads[1:])
    yield from (replace_size(usual, block_size=block) for block in blocks[1:])
    yield from (replace_size(usual, group=group) for group in groups[1:])


def _values(head_size: int, domain: Domain) -> int:
    """Return the size of values beside keys of a size, 0 where a target promises none of their own.

    It is smaller than that of keys if the domain has one, as a latent cache needs it.
    """
    if not domain.allows("head_size_v"):
        return 0
    fitting = (size for size in _VALUE_SIZES if within(size, domain.value_sizes) and size < head_size)
    return next(fitting, domain.value_sizes[0])


def _allowed(wanted: tuple[int, ...], bounds: tuple[int, ...]) -> list[int]:
    return [size for size in wanted if within(size, bounds)] or [bounds[0]]


def plain_case(family: Family, size: Size) -> AttentionCase:
    """Return a case without a feature: two sequences, one of them on two pages.

    Unused slots hold zeros: a target that reads a slot in vain, which a campaign finds, must not look wrong here.

    A cache does not hold new tokens that are read packed, so that a target which reads them there is seen.
    """
    interface = FAMILIES[family]
    keys = size.block_size + 7
    query_len = 1 if interface.one_token_each else {"ragged": 3, "decode": 1, "fresh": keys}[size.batch]
    return AttentionCase(
        sequences=(Sequence(query_len, keys - query_len), Sequence(1, 0 if size.batch == "fresh" else 4)),
        family=family,
        heads=HeadLayout(
            num_kv_heads=1 if interface.cache.is_latent else 2,
            num_queries_per_kv=size.group,
            head_size=size.head_size,
            value_size=size.value_size,
        ),
        dtypes=DTypes(q=size.dtype, kv=size.dtype, out=size.dtype),
        pages=PageLayout(block_size=size.block_size, permuted=not interface.cache.is_packed, spare_blocks=1),
        softmax_scale=float(size.head_size**-0.5),
        near_uniform=True,
        launch=LaunchHints(configuration=size.configuration),
        poison=PoisonRecipe(keys="zero", values="zero"),
        stale_cache="stale_cache" in FEATURES_OF[family],
        seed=1,
    )


def case_of(question: str, family: Family, size: Size) -> AttentionCase:
    """Return the case of a question: the plain case with one feature more."""
    plain = plain_case(family, size)
    match question:
        case "window":
            return replace(plain, window=WINDOW)
        case "scales":
            dtypes = DTypes(q=size.dtype, kv="float8_e4m3fn", out=size.dtype)
            return replace(plain, dtypes=dtypes, scales=Scales(k=0.5, v=4.0), stale_cache=False)
        case "sinks":
            return replace(plain, sinks=SinkRecipe(level=2.0))
        case "alibi":
            return replace(plain, alibi=AlibiRecipe(kind="arbitrary"))
        case "softcap":
            return replace(plain, softcap=0.5)
    return plain
