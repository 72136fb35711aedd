"""Easy cases: a few keys of nearly equal weights, so that each visible key and each factor shows in the output.

A feature that a target states by name and refuses even in these is a broken promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_size
from typing import Any, Final, Literal, TypeAlias

from fuzz_attn.backends.backend import Backend
from fuzz_attn.case.aspects import FEATURES, FEATURES_OF, STATED, Feature, all_features_of, fp8_features, with_feature
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain, unpromised, within
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import DTypeName, DTypes, HeadLayout, LaunchHints, PageLayout, Scales, Sequence, Strides
from fuzz_attn.case.recipes import AlibiRecipe, PoisonRecipe, QQBiasRecipe, SinkRecipe
from fuzz_attn.errors import CaseError, UnsupportedByBackendError
from fuzz_attn.oracle.verdict import Refusal
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.strategies.dtypes import fp8_dtypes, mixed_dtypes
from fuzz_attn.targets.target import Target

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


Site = tuple[str, str, str]


class BrokenPromises:
    """What a target refuses of the features that it promises by name, asked once for each feature."""

    def __init__(self, target: Target, backend: Backend) -> None:
        self.target = target
        self.backend = backend
        self._sites: dict[Feature, frozenset[Site]] = {}

    def by(self, case: AttentionCase, refusal: Refusal) -> Feature | None:
        """Return the promised feature that a case is refused for, None where it is refused for something else.

        A target may refuse a feature beside others or with some sizes: that is no broken promise, but one that is
        refused with all of the usual sizes, and nothing else, is.
        """
        present = sorted(all_features_of(case) & self.target.promised)
        return next((feature for feature in present if refusal.site in self._refusing(feature)), None)

    def _refusing(self, feature: Feature) -> frozenset[Site]:
        """Return the places that refuse a feature; none if it is accepted with some of the usual sizes."""
        if feature not in self._sites:
            self._sites[feature] = self._asked(feature)
        return self._sites[feature]

    def _asked(self, feature: Feature) -> frozenset[Site]:
        sites = set[Site]()
        for size in sizes(self.target.domain):
            pair = self._with_and_without(feature, size)
            if pair is None or self._refusal_of(pair[1]) is not None:
                continue
            refusal = self._refusal_of(pair[0])
            if refusal is None:
                return frozenset()
            sites.add(refusal.site)
        return frozenset(sites)

    def _with_and_without(self, feature: Feature, size: Size) -> tuple[AttentionCase, AttentionCase] | None:
        """Return an easy case with a feature and without; None where the target promises no such case.

        The easiest case of some targets has the feature already.
        """
        domain = self.target.domain
        plain = replace(plain_case(domain.family, size), stale_cache=False)
        try:
            case = plain if feature in all_features_of(plain) else _with(feature, plain, domain)
            without = FEATURES[feature].without(plain)
        except CaseError:
            return None
        if case is None or feature not in all_features_of(case) or unpromised(case, domain):
            return None
        return case, without

    def _refusal_of(self, case: AttentionCase) -> Refusal | None:
        experiment = Experiment(case, self.target, self.backend, strict=False)
        try:
            with self.backend.unrecorded():
                return experiment.refusal
        except UnsupportedByBackendError:
            return None


_BIASES: Final[dict[Feature, dict[str, Any]]] = {
    "alibi": {"alibi": AlibiRecipe(dtype="float16")},
    "qq_bias": {"qq_bias": QQBiasRecipe(dtype="float16")},
    "sinks": {"sinks": SinkRecipe(dtype="float64")},
}


def _with(feature: Feature, plain: AttentionCase, domain: Domain) -> AttentionCase | None:
    """Return an easy case with a feature in its simplest form, None for features of addresses: no host refuses them."""
    if feature in _TYPES:
        return _with_types(feature, plain, domain)
    if feature in STATED:
        return replace(plain, **{feature: getattr(domain, STATED[feature])})
    if feature == "bias_dtypes":
        return next((replace(plain, **change) for name, change in _BIASES.items() if domain.allows(name)), None)
    if feature == "inner_strides":
        bias = domain.allows("qq_bias")
        return replace(plain, qq_bias=QQBiasRecipe(step=2)) if bias else replace(plain, strides=Strides(page_head=16))
    return with_feature(plain, feature) if FEATURES[feature].has_form else None


_TYPES: Final[dict[Feature, Callable[[Domain], Any]]] = {
    "fp8_q": fp8_dtypes,
    "fp8_kv": fp8_dtypes,
    "fp8_out": fp8_dtypes,
    "uint8_cache": fp8_dtypes,
    "mixed_dtypes": mixed_dtypes,
}


def _with_types(feature: Feature, plain: AttentionCase, domain: Domain) -> AttentionCase | None:
    """Return an easy case with other types, None where the domain has none that are easy."""
    wanted = frozenset[Feature]({"fp8_kv"} if feature == "uint8_cache" else {feature})
    for dtypes in _TYPES[feature](domain):
        usual = feature == "fp8_q" or dtypes.q == plain.dtypes.q
        if usual and (feature == "mixed_dtypes" or fp8_features(dtypes) == wanted):
            return replace(plain, dtypes=dtypes, uint8_cache=feature == "uint8_cache")
    return None
