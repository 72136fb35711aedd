"""Promises: the domain of a target, as it follows from its binding, and why a feature is not in it."""

from __future__ import annotations

from typing import Final

from msgspec import ValidationError, convert, to_builtins
from msgspec.structs import replace

from fuzz_attn.binding.binding import Binding, format_of
from fuzz_attn.binding.roles import SEGMENT_ROLES, SPLIT_ROLES
from fuzz_attn.case.aspect_table import NotDrawn, Reason
from fuzz_attn.case.aspects import ALL_FEATURES, FEATURES, FEATURES_OF, UNPUBLISHED_FEATURES, VIRTUAL_FEATURES, Feature
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import LaunchPath
from fuzz_attn.errors import BindingError, DomainError

_UNDECLARED: Final[frozenset[Feature]] = UNPUBLISHED_FEATURES | {"fp8_q"}
"""Features that never follow from a signature: a target has to declare them. Published versions differ in how they
compute fp8 queries."""
_OF_CACHES: Final[frozenset[Feature]] = frozenset(("stale_cache", "fp8_kv", "uint8_cache", "large_offsets"))
"""Features of the caches of a case, of which a launcher of packed keys gets none."""
_OTHER_SLOPES: Final = tuple(
    frozenset[Feature](("alibi", name)) for name in ("full_mask", "top_left", "lookahead", "lse", "sinks")
)
"""Where launchers of packed keys differ in ALiBi: most count from a row's own position, and take the distance of later
keys without its sign."""
_NATIVE_ONLY: Final[frozenset[Feature]] = frozenset(("large_offsets",))
"""Features of the caches of a case that a copy in another layout cannot have."""


def domain_of(binding: Binding) -> Domain:
    """Return the inputs that a binding promises: those features whose roles it all has, within the stated limits.

    Raises :class:`BindingError` for limits that are no part of a domain, and :class:`DomainError` for a domain that
    needs parameters which the signature lacks.
    """
    assert binding.family is not None
    features = (expressible(binding) - _UNDECLARED) | frozenset(binding.promises)
    own = Domain(
        family=binding.family,
        features=features,
        paths=_paths(binding),
        fp8_q_scales=False,
        usual_scale="softmax_scale" not in binding.parameter_of,
        no_context=_has_no_cache(binding),
        excluded=_OTHER_SLOPES if FAMILIES[binding.family].cache.is_packed else (),
    )
    return _checked(_limited(own, binding), binding)


def _has_no_cache(binding: Binding) -> bool:
    """Return whether a launcher takes packed keys and values only."""
    roles = set(binding.parameter_of)
    return {"new_keys", "new_values"} <= roles and not roles & {"key_cache", "value_cache"}


def _limited(domain: Domain, binding: Binding) -> Domain:
    """Return a domain within the limits that a binding states."""
    if _has_no_unused_rows(binding) and domain.block_sizes == Domain().block_sizes:
        domain = replace(domain, block_sizes=(1,))
    if not binding.domain:
        return domain
    if "family" in binding.domain:
        raise BindingError("domain.family must be stated as the family of the binding")
    try:
        found = convert({**to_builtins(domain), **binding.domain}, Domain)
    except ValidationError as error:
        raise BindingError(str(error) if "domain." in str(error) else f"domain: {error}") from error
    return replace(found, features=found.features | frozenset(binding.promises))


def declared(domain: Domain, binding: Binding) -> Domain:
    """Return a domain that a target declares; without a choice of features it gets those of its binding.

    Raises :class:`DomainError` for a domain that needs parameters which the signature lacks.
    """
    if domain.features == ALL_FEATURES:
        domain = replace(domain, features=(expressible(binding) - _UNDECLARED) | frozenset(binding.promises))
    return _checked(_limited(domain, binding), binding)


def stated_features(binding: Binding | None, domain: Domain | None = None) -> frozenset[Feature]:
    """Return the features that a binding, or a domain with a choice of features, promises by their names."""
    stated: set[object] = set()
    if domain is not None and domain.features != ALL_FEATURES:
        stated |= domain.features
    if binding is not None:
        named = binding.domain.get("features", ())
        stated |= {*binding.promises, *(named if isinstance(named, tuple | list) else ())}
    return frozenset(feature for feature in ALL_FEATURES if feature in stated)


def not_drawn(promised: Domain, drawn: Domain, binding: Binding) -> NotDrawn:
    """Return why features of a family are not drawn, in a fixed order.

    ``promised`` is the domain of the target before its calibration, ``drawn`` what cases are drawn from.
    """
    known, inexpressible = expressible(binding), _inexpressible(binding)

    def reason(feature: Feature) -> Reason:
        if feature in inexpressible:
            return "layout"
        if feature not in known:
            return "no parameter"
        if promised.allows(feature):
            return "backend" if feature in VIRTUAL_FEATURES else "refused"
        return "not promised" if feature in _UNDECLARED else "left out"

    return {name: reason(name) for name in FEATURES if _lacks(drawn, name)}


def _lacks(domain: Domain, feature: Feature) -> bool:
    return feature in FEATURES_OF[domain.family] and not domain.allows(feature)


def expressible(binding: Binding) -> frozenset[Feature]:
    """Return the features whose roles a binding has and whose memory its layout can express."""
    assert binding.family is not None
    roles = set(binding.parameter_of)
    features = frozenset(name for name in FEATURES_OF[binding.family] if _has_roles(roles, FEATURES[name].roles))
    if binding.window != "pair" and "window_right" not in roles:  # a window passed as one number has one side
        features -= {"lookahead"}
    return features - _inexpressible(binding)


def _has_roles(known: set[str], needed: tuple[str, ...]) -> bool:
    """Return whether a binding has all roles of one of several sets, or needs none."""
    return not needed or any(known.issuperset(names.split()) for names in needed)


def _inexpressible(binding: Binding) -> frozenset[Feature]:
    """Return the features that neither the layout nor the output of a binding can express."""
    assert binding.family is not None
    native = format_of(binding.cache_layout, binding.family) is not None
    lost = frozenset[Feature]() if native else _NATIVE_ONLY
    if binding.fp8 == "bytes":
        lost |= {"uint8_cache"}
    if _has_no_cache(binding):
        lost |= _OF_CACHES
    in_one_row = FAMILIES[binding.family].cache.in_one_row
    if not in_one_row and {"kv_indices", "slot_table"} & set(binding.parameter_of):  # such a slot may exceed 32 bits
        lost |= _NATIVE_ONLY
    return lost


def _checked(domain: Domain, binding: Binding) -> Domain:
    known = expressible(binding)
    lacking = sorted(domain.features - known)
    if lacking:
        has = ", ".join(sorted(known)) or "none"
        raise DomainError(f"domain.features names {', '.join(lacking)}, which its signature lacks; it has {has}")
    assert binding.family is not None
    roles = binding.parameter_of
    chooses = "num_segments" in roles or _paths(binding) != ("auto",)
    if domain.paths != ("auto",) and not chooses:
        has_threshold = FAMILIES[binding.family].has_several_paths
        segments = ", or seq_threshold_3D and the scratch of segments" if has_threshold else ""
        raise DomainError(f"domain.paths={domain.paths} needs a signature with num_segments{segments}")
    if domain.tile_hint and "tile_size" not in roles:
        raise DomainError("domain.tile_hint=True needs a signature with tile_size")
    if _has_no_unused_rows(binding) and domain.block_sizes != (1,):
        raise DomainError(f"domain.block_sizes={domain.block_sizes} must be (1,) without a parameter for seq_lens")
    return domain


def _has_no_unused_rows(binding: Binding) -> bool:
    """Return whether packed keys follow each other without gaps: prefix sums alone cannot say which rows are used."""
    assert binding.family is not None
    return FAMILIES[binding.family].cache.is_packed and "seq_lens" not in binding.parameter_of


def _paths(binding: Binding) -> tuple[LaunchPath, ...]:
    assert binding.family is not None
    roles, known = set(binding.parameter_of), FAMILIES[binding.family].has_several_paths
    splits = known and roles.issuperset(SPLIT_ROLES)
    return ("2d", "3d") if splits or roles.issuperset(SEGMENT_ROLES) else ("auto",)
