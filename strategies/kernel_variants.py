"""Kernel variants: what kernels are compiled for beside the compile key of a case."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Final, NamedTuple

from hypothesis import strategies as st

from fuzz_attn.case.attention_case import CompileKey
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import Sequence as QueriesAndKeys
from fuzz_attn.case.parts import Strides
from fuzz_attn.case.recipes import BiasDType
from fuzz_attn.strategies.draws import Sample, composite, sampled_from
from fuzz_attn.strategies.features import windows
from fuzz_attn.strategies.heads import heads_of


class KernelVariant(NamedTuple):
    """What a kernel is compiled for although it is not in a compile key.

    ``slopes``, ``bias`` and ``sinks`` are the types of these tensors. ``query_starts`` and ``key_piece`` are as in
    :class:`~fuzz_attn.case.parts.CallForm` and :class:`~fuzz_attn.case.parts.Strides`.
    """

    slopes: BiasDType
    bias: BiasDType
    sinks: BiasDType
    query_starts: bool
    key_piece: int

    def within(self, domain: Domain) -> KernelVariant:
        """Return the variant with the usual value for each that a domain does not have."""
        others = domain.allows("bias_dtypes")
        pieces = domain.allows("inner_strides") and FAMILIES[domain.family].cache.piece_bytes
        return KernelVariant(
            slopes=self.slopes if others else "float32",
            bias=self.bias if others else "float32",
            sinks=self.sinks if others or self.sinks != "float64" else "float32",
            query_starts=self.query_starts or not domain.allows("call_forms"),
            key_piece=self.key_piece if pieces else 0,
        )


BIAS_DTYPES: Final[tuple[BiasDType, ...]] = ("float32",) * 9 + ("float16", "bfloat16", "float64")
SINK_DTYPES: Final[tuple[BiasDType, ...]] = ("float32",) * 13 + ("float16", "bfloat16", "float64")
"""Mostly float32, which published kernels have; each other type compiles a kernel anew."""

_BIASES: Final = sampled_from(BIAS_DTYPES)
_SINKS: Final = sampled_from(SINK_DTYPES)
_STARTS: Final = sampled_from((True,) * 11 + (False,))
_PIECES: Final = sampled_from((0,) * 90 + (1, 1, 1, 2, 2, 3, 4, 5, 6, 10, 12))


@composite
def kernel_variants(draw: st.DrawFn) -> KernelVariant:
    """Return a strategy of variants; shrinks towards float32, all arguments, and keys in pieces of the usual size."""
    return KernelVariant(
        slopes=draw(_BIASES),
        bias=draw(_BIASES),
        sinks=draw(_SINKS),
        query_starts=draw(_STARTS),
        key_piece=draw(_PIECES),
    )


_VARIANTS: Final = kernel_variants()


USUAL: Final = KernelVariant("float32", "float32", "float32", query_starts=True, key_piece=0)


@lru_cache(maxsize=256)
def variant_of(key: CompileKey, seed: int) -> KernelVariant:
    """Return the variant that a seed chooses for a compile key, so that the cases of the key share its kernels."""
    return Sample(Random(f"{seed}/{key.number}")).draw(_VARIANTS)  # noqa: S311 - nothing secret


class KernelForm(NamedTuple):
    """What cases that share their kernels have in common beside the compile key: the variant, KV heads, and strides.

    Triton specialises kernels on sizes and strides that are 1 or divisible by 16. Nearly all of them follow from these.
    Some kernels are compiled for each window and width of a block table, too. For these, ``windows`` are those that
    the cases have, and ``divisible_rows`` says whether rows of the table have a multiple of 16 columns or neither that
    nor 1. They are empty and None where cases may have any.
    """

    variant: KernelVariant
    num_kv_heads: int
    strides: Strides
    windows: tuple[int, ...] = ()
    divisible_rows: bool | None = None

    def narrow(self, key: CompileKey, domain: Domain, seed: int) -> KernelForm:
        """Return the form with the windows and the width of block tables that a seed chooses for a compile key."""
        sample = Sample(Random(f"{seed}/{key.number}/narrow"))  # noqa: S311 - nothing secret
        tiles = (key.launch.tile_size,) if key.launch.tile_size else domain.tile_sizes
        some = ((), (QueriesAndKeys(3, 4 * key.block_size),))  # one within a few tiles, one of pages
        chosen = [sample.draw(windows(sequences=each, block_size=key.block_size, tile_sizes=tiles)) for each in some]
        return self._replace(windows=tuple(chosen), divisible_rows=bool(sample.index(2)))


_DENSE: Final = Strides()
_STRIDED: Final = sampled_from((False, False, False, True, True))
_UNUSUAL: Final = sampled_from((False, True, True, True))


def form_of(key: CompileKey, layouts: Sequence[Strides], seed: int) -> KernelForm:
    """Return the form that a seed chooses for a compile key, with dense tensors or with one of the layouts.

    Its parts are as frequent as in cases that are drawn one by one, and one in four has the usual variant.
    """
    sample = Sample(Random(f"{seed}/{key.number}/form"))  # noqa: S311 - nothing secret
    heads = sample.draw(heads_of(key))
    strides = layouts[sample.index(len(layouts))] if sample.draw(_STRIDED) else _DENSE
    return KernelForm(variant_of(key, seed) if sample.draw(_UNUSUAL) else USUAL, heads.num_kv_heads, strides)
