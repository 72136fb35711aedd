"""Domain: the inputs that a target promises to handle, and what of a case it does not promise."""

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Final, Self, get_args

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from fuzz_attn.case.aspects import (
    ALL_FEATURES,
    FEATURES,
    FEATURES_OF,
    STATED,
    UNPUBLISHED_FEATURES,
    VIRTUAL_FEATURES,
    Feature,
    all_features_of,
    words_of,
)
from fuzz_attn.case.case_fields import CaseFields
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import (
    DTYPES,
    FP8_DTYPES,
    MOST_CONFIGURATIONS,
    MOST_STAGES,
    NUM_WARPS,
    WIDE_DTYPES,
    DTypeName,
    LaunchPath,
    NumWarps,
    PlainValue,
    is_fp8,
)
from fuzz_attn.case.paths import in_words
from fuzz_attn.case.recipes import AlibiKind, LogSumExp
from fuzz_attn.errors import DomainError

_LARGEST: Final = {"head_sizes": 1024, "block_sizes": 4096, "group_sizes": 2**20, "segments": 256, "value_sizes": 1024}
"""The largest size that a case may have; see :mod:`fuzz_attn.case.parts`."""

ALIBI_KINDS: Final[tuple[AlibiKind, ...]] = get_args(AlibiKind)


class Domain(Struct, frozen=True, forbid_unknown_fields=True, repr_omit_defaults=True):
    """Bounds and features of a target. The defaults are everything that the unified family of this project handles.

    - ``features``: only those count that the interface of ``family`` can express.
    - ``excluded``: combinations of features that are not supported together; one of a single feature removes it. Of a
      combination with unpublished features, those are removed.
    - ``dtypes``: the types of q without fp8, which comes through the features.
    - ``cache_dtypes`` and ``output_dtypes``: the types of the caches, and of fp8 queries, and of the output. A target
      with one fp8 type names only that one. With ``mixed_dtypes``, an output that cannot have
      the type of q has the first wide type; without, q has only types that the output can have, beside an fp8 output.
    - ``head_sizes``, ``block_sizes``, ``group_sizes``, ``segments`` (of the path ``3d``) and ``value_sizes`` (where
      values may have another size than keys) are inclusive ranges, or an explicit tuple of another length than two.
      Families with split caches use only head sizes that the cache's type can split.
    - ``tile_sizes`` are where the target cuts the keys, so that strategies can aim at the cuts; with ``tile_hint`` a
      case may choose among them.
    - ``fp8_q_scales=False`` keeps all scales at 1 when q is fp8 (published versions before May 2026 ignore them).
    - ``num_warps`` and ``num_stages``: what Triton's compiler may be asked for in place of the launcher's own choice.
      With ``launch_options``, which the backend of a GPU sets, cases choose among them.
    - ``configurations``: how many the autotuned kernels of the target have at most.
    - ``arguments``: optional ones that no role has, each with the values that cases may have in place of its default.
    - ``lse``: the form of the log-sum-exp that the target writes (:class:`fuzz_attn.case.recipes.LogSumExp`).
    - ``usual_scale``: the target takes no softmax scale, so it is always ``head_size**-0.5``.
    - ``no_context``: the target takes packed keys of new tokens only, so no sequence has a context.
    - ``alibi_kinds``: the kinds of ALiBi slopes (:class:`fuzz_attn.case.recipes.AlibiRecipe`).
    """

    family: Family = "unified"
    dtypes: tuple[DTypeName, ...] = ("float32", "float16", "bfloat16")
    head_sizes: tuple[int, ...] = (1, 256)
    block_sizes: tuple[int, ...] = (1, 784)
    group_sizes: tuple[int, ...] = (1, 64)
    features: frozenset[Feature] = ALL_FEATURES
    paths: tuple[LaunchPath, ...] = ("auto",)
    tile_sizes: tuple[int, ...] = (16, 32, 64)
    tile_hint: bool = False
    fp8_q_scales: bool = True
    cache_dtypes: tuple[DTypeName, ...] = tuple(DTYPES)
    output_dtypes: tuple[DTypeName, ...] = tuple(DTYPES)
    segments: tuple[int, ...] = (1, 128)
    excluded: tuple[frozenset[Feature], ...] = ()
    alibi_kinds: tuple[AlibiKind, ...] = ALIBI_KINDS
    num_warps: tuple[NumWarps, ...] = (1, 2, 4, 8)
    num_stages: tuple[int, ...] = (1, 2, 3)
    launch_options: bool = False
    lse: LogSumExp = LogSumExp()
    value_sizes: tuple[int, ...] = (1, 256)
    usual_scale: bool = False
    no_context: bool = False
    configurations: int = 1
    arguments: tuple[tuple[str, tuple[PlainValue, ...]], ...] = ()

    def __post_init__(self) -> None:
        """Raise :class:`DomainError`, with argument, value and bound, for an unknown name or a domain without cases."""
        if self.family not in FAMILIES:
            raise DomainError(f"domain.family={self.family!r} must be one of {', '.join(FAMILIES)}")
        interface = FAMILIES[self.family]
        self._check_features()
        for name, known in (
            ("dtypes", WIDE_DTYPES),
            ("paths", interface.paths),
            ("cache_dtypes", tuple(DTYPES)),
            ("output_dtypes", tuple(DTYPES)),
            ("alibi_kinds", ALIBI_KINDS),
        ):
            _require_known(f"domain.{name}", getattr(self, name), known)
        for name, known_numbers in (("num_warps", NUM_WARPS), ("num_stages", range(1, MOST_STAGES + 1))):
            if not set(getattr(self, name)) <= set(known_numbers):
                allowed = ", ".join(map(str, known_numbers))
                raise DomainError(f"domain.{name}={getattr(self, name)} must have only numbers of {allowed}")
        if not 1 <= self.configurations <= MOST_CONFIGURATIONS:
            raise DomainError(f"domain.configurations={self.configurations} must be 1 to {MOST_CONFIGURATIONS}")
        if "standard" not in self.alibi_kinds:
            raise DomainError(f"domain.alibi_kinds={self.alibi_kinds} must contain 'standard', the simplest slopes")
        for name, largest in _LARGEST.items():
            sizes = getattr(self, name)
            if not sizes or list(sizes) != sorted(sizes) or sizes[0] < 1 or sizes[-1] > largest:
                raise DomainError(f"domain.{name}={sizes} must be ascending sizes from 1 to {largest}")
        piece = min((interface.cache.piece(dtype) for dtype in self.dtypes), default=1)
        if not any(size % piece == 0 for size in sizes_of(self.head_sizes)):
            raise DomainError(f"domain.head_sizes={self.head_sizes} must allow a multiple of {piece} for {self.dtypes}")
        self._check_types()

    def _check_features(self) -> None:
        given: object = self.features
        if isinstance(given, str):
            raise DomainError(f"domain.features={given!r} must be a set of names")
        known = tuple(sorted(ALL_FEATURES))
        _require_known("domain.features", frozenset(self.features), known)
        for combination in self.excluded:
            _require_known("an entry of domain.excluded", tuple(combination), known)
        excluded = [frozenset(combination) for combination in self.excluded]
        lost = frozenset[Feature]().union(
            *(each if len(each) == 1 else each & UNPUBLISHED_FEATURES for each in excluded)
        )
        force_setattr(self, "features", frozenset(self.features) - lost)
        force_setattr(self, "excluded", tuple(each for each in excluded if each <= self.features))

    def _check_types(self) -> None:
        """Raise :class:`DomainError` where no cache or no output has a type that the features allow."""
        fp8 = FP8_DTYPES if self.allows("fp8_kv") else ()
        if not {*self.dtypes, *fp8} & set(self.cache_dtypes):
            allowed = ", ".join((*self.dtypes, *fp8))
            raise DomainError(f"domain.cache_dtypes={self.cache_dtypes} must contain one of {allowed}")
        fp8 = FP8_DTYPES if self.allows("fp8_out") else ()
        wide = WIDE_DTYPES if self.allows("mixed_dtypes") else self.dtypes
        if not {*wide, *fp8} & set(self.output_dtypes):
            allowed = ", ".join((*wide, *fp8))
            raise DomainError(f"domain.output_dtypes={self.output_dtypes} must contain one of {allowed}")

    def allows(self, feature: Feature) -> bool:
        """Return whether cases may have the feature."""
        return feature in self.features and feature in FEATURES_OF[self.family]

    def in_memory(self) -> Self:
        """Return the domain without tensors whose addresses mostly take no memory; only the simulator has them."""
        return replace(self, features=self.features - VIRTUAL_FEATURES)

    def on_gpu(self) -> Self:
        """Return the domain as a GPU has it: without large offsets, with a choice of options of the compiler.

        Configurations of an autotuner have options of their own.
        """
        return replace(self.in_memory(), launch_options=self.configurations == 1)

    def excludes(self, present: Collection[Feature]) -> frozenset[Feature] | None:
        """Return the first combination of features present that is not supported, None where there is none."""
        return next((each for each in self.excluded if each.issubset(present)), None)


def beside(domain: Domain, present: Iterable[Feature]) -> Domain:
    """Return a domain without the features that are not supported together with those present."""
    return _beside(domain, frozenset(present)) if domain.excluded else domain


@lru_cache(maxsize=1024)
def _beside(domain: Domain, present: frozenset[Feature]) -> Domain:
    left = (each - present for each in domain.excluded)
    return replace(domain, features=domain.features.difference(*(each for each in left if len(each) == 1)))


def sizes_of(bounds: tuple[int, ...]) -> Iterable[int]:
    """Return all sizes of an inclusive range of two, or the values of another tuple."""
    return range(bounds[0], bounds[1] + 1) if len(bounds) == 2 else bounds


def within(size: int, bounds: tuple[int, ...]) -> bool:
    """Return whether a size lies in an inclusive range of two, or among the values of a longer tuple."""
    return size in sizes_of(bounds)


def _require_known(name: str, given: Collection[str], known: tuple[str, ...]) -> None:
    """Raise :class:`DomainError` unless there is at least one name and each is known; a set may be empty."""
    value = sorted(given) if isinstance(given, frozenset) else tuple(given)
    unknown = [each for each in value if each not in known]
    if unknown:
        raise DomainError(f"{name}={value} has no {unknown[0]!r}: choose among {', '.join(known)}")
    if not given and not isinstance(given, frozenset):
        raise DomainError(f"{name}=() must name at least one of {', '.join(known)}")


def unpromised(case: CaseFields, domain: Domain) -> str:
    """Return what of a case its target does not promise, in words; an empty string where it promises all.

    Large offsets are not counted: a backend without virtual memory takes them out of every domain. A hint for a path is
    not counted where the launcher always chooses by itself.
    """
    return next(_unpromised(case, domain), "")


def missing_feature(case: CaseFields, domain: Domain) -> str:
    """Return the first feature of a case that a domain lacks, in words; an empty string where it has all."""
    lacking = (name for name in all_features_of(case) - {"large_offsets"} if not domain.allows(name))
    return next(iter(words_of(frozenset(lacking))), "")


def _unpromised(case: CaseFields, domain: Domain) -> Iterator[str]:
    lacking = missing_feature(case, domain)
    if lacking:
        yield lacking
    combination = domain.excludes(all_features_of(case))
    if combination:
        yield " together with ".join(words_of(combination))
    launch, heads = case.launch, case.heads
    if launch.path not in ("auto", *domain.paths) and domain.paths != ("auto",):
        yield f"the path {launch.path}"
    if launch.num_segments and "3d" in domain.paths and not within(launch.num_segments, domain.segments):
        yield f"{launch.num_segments} segments"
    known = dict(domain.arguments)
    unknown = [(name, value) for name, value in launch.arguments if value not in known.get(name, ())]
    if unknown:
        yield in_words(unknown)
    yield from _unpromised_types(case, domain)
    for what, size, allowed in (
        ("heads of {}", heads.head_size, domain.head_sizes),
        *((("values of {}", heads.head_size_v, domain.value_sizes),) if domain.allows("head_size_v") else ()),
        ("pages of {}", case.pages.block_size, domain.block_sizes),
        ("{} query heads for each KV head", heads.num_queries_per_kv, domain.group_sizes),
    ):
        if not within(size, allowed):
            yield what.format(size)
    if case.alibi is not None and case.alibi.kind not in domain.alibi_kinds:
        yield f"{case.alibi.kind} ALiBi slopes"
    if domain.no_context and any(sequence.context_len for sequence in case.sequences):
        yield "a context"
    if domain.usual_scale and case.softmax_scale != case.heads.head_size**-0.5:
        yield "a softmax scale other than head_size**-0.5"
    for name, field in STATED.items():
        recipe = getattr(case, name)
        if recipe not in (None, getattr(domain, field)):
            yield f"a {FEATURES[name].line} {recipe.words()}"


def _unpromised_types(case: CaseFields, domain: Domain) -> Iterator[str]:
    dtypes = case.dtypes
    if not is_fp8(dtypes.q) and dtypes.q not in domain.dtypes:
        yield f"queries of {dtypes.q}"
    if dtypes.kv not in domain.cache_dtypes:
        yield f"a cache of {dtypes.kv}"
    if dtypes.out not in domain.output_dtypes:
        yield f"an output of {dtypes.out}"
