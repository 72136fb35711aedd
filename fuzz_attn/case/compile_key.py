"""Compile key: the part of a case that decides whether Triton compiles a kernel anew."""

from __future__ import annotations

import zlib

import msgspec

from fuzz_attn.case.aspects import MASK_FEATURES, Feature, compiled_features, fp8_features
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.families import Family
from fuzz_attn.case.parts import BlockSize, DTypes, HeadSize, LaunchHints, ValueSize
from fuzz_attn.case.plain import Plain, Positive
from fuzz_attn.case.recipes import MaskKind


class CompileKey(Plain, frozen=True):
    """Everything that a kernel of the family takes as a constexpr or a dtype.

    It leaves out what Triton sees in the arguments themselves, such as strides of 1, and what most cases have in the
    usual form (:class:`fuzz_attn.strategies.kernel_variants.KernelVariant`). Strategies draw the key first, from a
    bounded set, because compiling takes most of a campaign's time.
    """

    family: Family = "unified"
    dtypes: DTypes = DTypes()
    num_queries_per_kv: Positive = 1
    head_size: HeadSize = 16
    block_size: BlockSize = 16
    mask: MaskKind = "causal"
    compiled: tuple[Feature, ...] = ()
    """Features in the order of ``COMPILED_FEATURES``."""
    launch: LaunchHints = LaunchHints()
    value_size: ValueSize = 0

    @property
    def number(self) -> int:
        """A number for the key, the same in every process; that of a key with one flag for each of its features."""
        fields = msgspec.to_builtins(self)
        flags, launch = fields.pop("compiled", ()), fields.pop("launch", None)
        fields |= dict.fromkeys(flags, True)
        return zlib.crc32(msgspec.json.encode(fields if launch is None else {**fields, "launch": launch}))

    @property
    def widest(self) -> int:
        """The elements of a head of keys or of values, whichever has more."""
        return max(self.head_size, self.value_size)

    def has(self, feature: Feature) -> bool:
        """Return whether kernels are compiled for a feature."""
        return feature in self.compiled

    @property
    def features(self) -> frozenset[Feature]:
        """The features of its cases that the key decides."""
        return fp8_features(self.dtypes).union(self.compiled, MASK_FEATURES[self.mask])


def compile_key_of(case: CaseFields) -> CompileKey:
    """Return the compile key of a case."""
    return CompileKey(
        family=case.family,
        dtypes=case.dtypes,
        num_queries_per_kv=case.heads.num_queries_per_kv,
        head_size=case.heads.head_size,
        block_size=case.pages.block_size,
        mask=case.mask.kind,
        compiled=compiled_features(case),
        launch=case.launch,
        value_size=case.heads.value_size,
    )
