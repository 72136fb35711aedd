"""Write target: a callable that writes new keys and values to a paged cache, called by the names of its parameters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, get_args

from fuzz_attn.binding.binding import Binding
from fuzz_attn.operations.cache_write.write_case import (
    NAME,
    NEEDED,
    OWN_SCALES,
    ROLES,
    SCALE_CACHES,
    SCALES,
    StoredType,
    WriteDomain,
)
from fuzz_attn.operations.small.small_target import SmallTarget, signature_of

LAUNCHER: Final = "cache_write:cache_write"


@dataclass(frozen=True)
class WriteTarget(SmallTarget):
    """A callable that is also told what kind of caches it gets, where it has parameters for that."""

    def arguments(self, tensors: Any) -> dict[str, Any]:
        """Return the arguments by name; caches of scales are None for kinds without."""
        told = {"kv_cache_dtype": tensors.kv_cache_dtype, "kv_quant_mode": tensors.kv_quant_mode}
        return dict.fromkeys(SCALE_CACHES) | super().arguments(tensors) | told


def load(name: str, binding: Binding | None) -> WriteTarget:
    """Return the target that a specification names; raises :class:`TargetError` where its parameters do not fit.

    One without parameters for scales is not given the caches that need them.
    """
    found = signature_of(name, binding, (NAME, LAUNCHER), ROLES, NEEDED, "a cache write")
    domain = WriteDomain(stored_as=tuple(each for each in get_args(StoredType) if _fits(each, *found[1:])))
    return WriteTarget(name, found.call, domain=domain, roles=found.roles)


def _fits(stored_as: StoredType, roles: Collection[str], needed: Collection[str]) -> bool:
    """Return whether a target with parameters for these roles, some of them ``needed``, writes caches of a type."""
    if stored_as.endswith(OWN_SCALES):
        return all(scale in roles for scale in SCALE_CACHES)
    if any(scale in needed for scale in SCALE_CACHES):
        return False
    return not stored_as.startswith("float8") or all(scale in roles for scale in SCALES)
