"""Domain: the inputs that a target promises to handle. Strategies draw only cases within it."""

from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr

from fuzz_attn.case.dtypes import WIDE_DTYPES, DTypeName
from fuzz_attn.case.families import ALL_FEATURES, FAMILIES, Family, Feature
from fuzz_attn.case.parts import LaunchPath
from fuzz_attn.errors import DomainError

_LARGEST: Final = {"head_sizes": 1024, "block_sizes": 4096, "group_sizes": 2**20}
"""The largest size that a case may have; see :mod:`fuzz_attn.case.parts`."""


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
    block_sizes: tuple[int, ...] = (1, 784)
    group_sizes: tuple[int, ...] = (1, 64)
    features: frozenset[Feature] = ALL_FEATURES
    paths: tuple[LaunchPath, ...] = ("auto",)
    tile_sizes: tuple[int, ...] = (16, 32, 64)
    tile_hint: bool = False
    fp8_q_scales: bool = True

    def __post_init__(self) -> None:
        """Raise :class:`DomainError`, with argument, value and bound, for an unknown name or a domain without cases."""
        if self.family not in FAMILIES:
            raise DomainError(f"domain.family={self.family!r} must be one of {', '.join(FAMILIES)}")
        interface = FAMILIES[self.family]
        given: object = self.features
        if isinstance(given, str):
            raise DomainError(f"domain.features={given!r} must be a set of names")
        force_setattr(self, "features", frozenset(self.features))
        _require_known("domain.features", self.features, tuple(sorted(ALL_FEATURES)))
        _require_known("domain.dtypes", self.dtypes, WIDE_DTYPES)
        _require_known("domain.paths", self.paths, interface.paths)
        for name, largest in _LARGEST.items():
            sizes = getattr(self, name)
            if not sizes or list(sizes) != sorted(sizes) or sizes[0] < 1 or sizes[-1] > largest:
                raise DomainError(f"domain.{name}={sizes} must be ascending sizes from 1 to {largest}")
        piece = min((interface.cache.piece(dtype) for dtype in self.dtypes), default=1)
        if not any(size % piece == 0 for size in sizes_of(self.head_sizes)):
            raise DomainError(f"domain.head_sizes={self.head_sizes} must allow a multiple of {piece} for {self.dtypes}")

    def allows(self, feature: Feature) -> bool:
        """Return whether cases may have the feature."""
        return feature in self.features and feature in FAMILIES[self.family].features


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
