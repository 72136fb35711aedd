"""Place: where a target of a package that is not installed is, and what ``bindings.toml`` knows of how it is called."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from msgspec.structs import asdict, replace

from fuzz_attn.binding.binding import Binding, binding_of
from fuzz_attn.errors import TargetError

_REQUIREMENT: Final = re.compile(r"(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)")
_DOTTED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_WHEEL_FORM: Final = "PACKAGE==VERSION:module:function"
_CHECKOUT_FORM: Final = "FOLDER::module:function"
_BY_PARAMETER = ("roles", "constants", "tensors", "sizes")


@dataclass(frozen=True)
class WheelPlace:
    """A function in a published wheel: ``vllm==0.33.0:vllm.v1.attention.ops.prefix_prefill:context_attention_fwd``."""

    package: str
    version: str
    module: str
    attribute: str


@dataclass(frozen=True)
class CheckoutPlace:
    """A function in a checkout: ``path/to/repo::module:function``."""

    folder: Path
    module: str
    attribute: str


def place_of(spec: str) -> WheelPlace | CheckoutPlace | None:
    """Return the place that a specification names, None if it names an installed module, a file or a known name.

    Raises :class:`TargetError` where it is incomplete.
    """
    if "::" in spec:
        folder, _, rest = spec.partition("::")
        module, attribute = _module_and_attribute(rest, spec, _CHECKOUT_FORM)
        if not Path(folder).is_dir():
            raise TargetError(f"target={spec!r}: folder {folder!r} does not exist")
        return CheckoutPlace(Path(folder).resolve(), module, attribute)
    if "==" in spec:
        requirement, _, rest = spec.partition(":")
        found = _REQUIREMENT.fullmatch(requirement)
        if found is None:
            raise TargetError(f"target={spec!r} must be {_WHEEL_FORM}, with one exact version")
        return WheelPlace(found["package"], found["version"], *_module_and_attribute(rest, spec, _WHEEL_FORM))
    return None


def _module_and_attribute(text: str, spec: str, form: str) -> tuple[str, str]:
    module, _, attribute = text.partition(":")
    if not _DOTTED.fullmatch(module) or not _DOTTED.fullmatch(attribute):
        raise TargetError(f"target={spec!r} must be {form}")
    return module, attribute


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
