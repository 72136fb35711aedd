"""Promises: the domain of a target, as it follows from its binding."""

from __future__ import annotations

from typing import Final

from msgspec import ValidationError, convert, to_builtins
from msgspec.structs import replace

from fuzz_attn.bindings.binding import Binding
from fuzz_attn.bindings.layouts import native_layout
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import ALL_FEATURES, FAMILIES, UNPUBLISHED_FEATURES, Feature
from fuzz_attn.case.parts import LaunchPath
from fuzz_attn.errors import BindingError, DomainError
from fuzz_attn.targets.bindings.roles import NEEDED, SEGMENT_ROLES

_UNDECLARED: Final[frozenset[Feature]] = UNPUBLISHED_FEATURES | {"fp8_q"}
"""Features that never follow from a signature: a target has to declare them. Published versions differ in how they
compute fp8 queries."""
_NATIVE_ONLY: Final[frozenset[Feature]] = frozenset(("large_offsets",))
"""Features of the caches of a case that a copy in another layout cannot have."""


def domain_of(binding: Binding) -> Domain:
    """Return the inputs that a binding promises: those features whose roles it all has, within the stated limits.

    Raises :class:`BindingError` for limits that are no part of a domain, and :class:`DomainError` for a domain that
    needs parameters which the signature lacks.
    """
    assert binding.family is not None
    features = expressible(binding) - _UNDECLARED
    own = Domain(family=binding.family, features=features, paths=_paths(binding), fp8_q_scales=False)
    return _checked(_limited(own, binding), binding)


def _limited(domain: Domain, binding: Binding) -> Domain:
    """Return a domain within the limits that a binding states."""
    if not binding.domain:
        return domain
    if "family" in binding.domain:
        raise BindingError("domain.family must be stated as the family of the binding")
    try:
        return convert({**to_builtins(domain), **binding.domain}, Domain)
    except ValidationError as error:
        raise BindingError(str(error) if "domain." in str(error) else f"domain: {error}") from error


def declared(domain: Domain, binding: Binding) -> Domain:
    """Return a domain that a target declares; without a choice of features it gets those of its binding.

    Raises :class:`DomainError` for a domain that needs parameters which the signature lacks.
    """
    if domain.features == ALL_FEATURES:
        domain = replace(domain, features=expressible(binding) - _UNDECLARED)
    return _checked(_limited(domain, binding), binding)


def expressible(binding: Binding) -> frozenset[Feature]:
    """Return the features whose roles a binding has and whose memory its layout can express."""
    assert binding.family is not None
    roles = set(binding.parameter_of)
    features = {
        feature
        for feature in FAMILIES[binding.family].features
        if feature not in NEEDED or any(needed <= roles for needed in NEEDED[feature])
    }
    return frozenset(features - _inexpressible(binding))


def _inexpressible(binding: Binding) -> frozenset[Feature]:
    """Return the features that neither the layout nor the output of a binding can express."""
    assert binding.family is not None
    layout = binding.cache_layout
    native = layout is None or layout == native_layout(binding.family)
    lost = frozenset[Feature]() if native else _NATIVE_ONLY
    if binding.fp8 == "bytes":
        lost |= {"uint8_cache"}
    if {"kv_indices", "slot_table"} & set(binding.parameter_of):
        lost |= _NATIVE_ONLY
    return lost


def _checked(domain: Domain, binding: Binding) -> Domain:
    known = expressible(binding)
    lacking = sorted(domain.features - known)
    if lacking:
        has = ", ".join(sorted(known)) or "none"
        raise DomainError(f"domain.features names {', '.join(lacking)}, which its signature lacks; it has {has}")
    roles = binding.parameter_of
    chooses = "num_segments" in roles or _paths(binding) != ("auto",)
    if domain.paths != ("auto",) and not chooses:
        segments = ", or seq_threshold_3D and the scratch of segments" if binding.family == "unified" else ""
        raise DomainError(f"domain.paths={domain.paths} needs a signature with num_segments{segments}")
    if domain.tile_hint and "tile_size" not in roles:
        raise DomainError("domain.tile_hint=True needs a signature with tile_size")
    return domain


def _paths(binding: Binding) -> tuple[LaunchPath, ...]:
    return ("2d", "3d") if set(SEGMENT_ROLES) <= set(binding.parameter_of) else ("auto",)
