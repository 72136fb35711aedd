"""Known bindings: what this package knows of how published launchers are called, from ``bindings.toml``."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

from msgspec.structs import asdict, replace

from fuzz_attn.binding.binding import Binding, binding_of
from fuzz_attn.targets.published.place import CheckoutPlace, WheelPlace

_BY_PARAMETER = ("roles", "constants", "tensors", "sizes")


def known_binding(place: WheelPlace | CheckoutPlace | None, family: str | None = None) -> Binding | None:
    """Return the binding of a published launcher; None where nothing is known of it.

    A table of the file is named by a pattern of ``module:function``; of several the first counts, or with ``family``
    the first of that family, where there is one.
    """
    if place is None:
        return None
    name = f"{place.module}:{place.attribute}"
    fitting = [binding for pattern, binding in _known().items() if fnmatchcase(name, pattern)]
    of_family = [binding for binding in fitting if family is not None and binding.family == family]
    return next(iter(of_family + fitting), None)


@cache
def _known() -> dict[str, Binding]:
    tables = tomllib.loads(resources.files(__package__).joinpath("bindings.toml").read_text(encoding="utf-8"))
    return {pattern: binding for pattern, table in tables.items() if (binding := binding_of(table)) is not None}


def with_known(known: Binding | None, stated: Binding | None, family: str | None) -> Binding | None:
    """Return what a user states, completed by what is known; the user's wins, and a whole binding stays as it is."""
    if known is None or (stated is not None and stated.whole):
        return stated
    if family is not None:
        known = replace(known, family=None)
    if stated is None:
        return known
    named = {name for field in _BY_PARAMETER for name in getattr(stated, field)}
    changes = {}
    for field, value in asdict(stated).items():
        own = getattr(known, field)
        if isinstance(value, dict) and isinstance(own, dict):
            kept = {key: each for key, each in own.items() if field not in _BY_PARAMETER or key not in named}
            changes[field] = kept | value
        elif value != getattr(_NOTHING, field):
            changes[field] = value
    return replace(known, **changes)


_NOTHING = Binding()
