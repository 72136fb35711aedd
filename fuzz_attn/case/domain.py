"""Domain: the inputs that a target promises to handle. Strategies draw only cases within it."""

from msgspec import Struct

from fuzz_attn.case.dtypes import DTypeName
from fuzz_attn.case.families import ALL_FEATURES, FAMILIES, Family, Feature
from fuzz_attn.case.parts import LaunchPath
from fuzz_attn.errors import DomainError


class Domain(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds and features of a target. The defaults are everything that the unified family of this project handles.

    Only those ``features`` count that the interface of ``family`` can express. ``dtypes`` are the types of q without
    fp8, which comes through the features. ``head_sizes``, ``block_sizes`` and ``group_sizes`` are inclusive ranges, or
    an explicit tuple of more than two values; families with split caches use only head sizes that the cache's type can
    split. ``tile_sizes`` are where the target cuts the keys, so that strategies can aim at the cuts; with
    ``tile_hint`` a case may choose among them. ``fp8_q_scales=False`` keeps all scales at 1 when q is fp8 (published
    versions before May 2026 ignore them).
    """

    family: Family = "unified"
    dtypes: tuple[DTypeName, ...] = ("float32", "float16", "bfloat16")
    head_sizes: tuple[int, ...] = (1, 256)
    block_sizes: tuple[int, ...] = (1, 1056)
    group_sizes: tuple[int, ...] = (1, 64)
    features: frozenset[Feature] = ALL_FEATURES
    paths: tuple[LaunchPath, ...] = ("auto",)
    tile_sizes: tuple[int, ...] = (16, 32, 64)
    tile_hint: bool = False
    fp8_q_scales: bool = True

    def __post_init__(self) -> None:
        """Raise :class:`DomainError` for a domain without any case."""
        for name in ("dtypes", "head_sizes", "block_sizes", "group_sizes", "paths"):
            if not getattr(self, name):
                raise DomainError(f"domain.{name}=() must name at least one value")
        for name in ("head_sizes", "block_sizes", "group_sizes"):
            sizes = getattr(self, name)
            if min(sizes) < 1 or list(sizes) != sorted(sizes):
                raise DomainError(f"domain.{name}={sizes} must be ascending and at least 1")

    def allows(self, feature: Feature) -> bool:
        """Return whether cases may have the feature."""
        return feature in self.features and feature in FAMILIES[self.family].features


def within(size: int, bounds: tuple[int, ...]) -> bool:
    """Return whether a size lies in an inclusive range of two, or among the values of a longer tuple."""
    if len(bounds) == 2:
        return bounds[0] <= size <= bounds[1]
    return size in bounds
