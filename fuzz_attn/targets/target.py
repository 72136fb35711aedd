"""Targets: what can be fuzzed, and how it is found by name, by module, by file or by entry point."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec

from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.errors import TargetError
from fuzz_attn.inputs.tensors import AttentionTensors
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.targets import torch_defaults
from fuzz_attn.targets.bindings import BINDINGS
from fuzz_attn.targets.bindings.binding import Signature, signature_of

ENTRY_POINT_GROUP: Final = "fuzz_attn.targets"


@dataclass(frozen=True)
class Target:
    """Something that can be fuzzed: a callable, the inputs it promises to handle, and how it computes."""

    name: str
    call: Callable[..., object]
    domain: Domain = field(default_factory=Domain)
    model: RoundingModel = field(default_factory=RoundingModel)

    @property
    def family(self) -> Family:
        """The family whose interface the callable has: its domain's."""
        return self.domain.family

    @cached_property
    def signature(self) -> Signature:
        """The keyword names that the callable takes; read once, since a launch needs them each time."""
        return signature_of(self.call)

    @property
    def slug(self) -> str:
        """The name as a folder: letters, digits, dots, dashes and underscores."""
        return slug_of(self.name)

    def on_device(self, tensor_core_slack: float) -> Target:
        """Return the target as it computes on a device whose tensor cores lose that much at each addition."""
        slack = max(self.model.tensor_core_slack, tensor_core_slack)
        return replace(self, model=msgspec.structs.replace(self.model, tensor_core_slack=slack))

    def run(self, tensors: AttentionTensors) -> None:
        """Call the target on tensors; it writes ``tensors.output`` in place."""
        arguments = BINDINGS[self.family].arguments_for(self.signature, tensors)
        with torch_defaults.of_targets():
            self.call(**arguments)


def slug_of(name: str) -> str:
    """Return a target's name as a folder name."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name.removesuffix(".py")).strip("-.") or "target"


_BUILT_IN: Final[dict[str, tuple[str, Domain]]] = {
    "unified": (
        "unified_attention:unified_attention",
        Domain(paths=("auto", "2d", "3d"), tile_sizes=(16, 32, 64), tile_hint=True),
    ),
    "paged": ("paged_attention:paged_attention_decode", Domain(family="paged", tile_hint=True)),
    "context": ("context_attention:context_attention_fwd", Domain(family="context", tile_hint=True)),
    "chunked": ("chunked_prefill:chunked_prefill_paged_decode", Domain(family="chunked", tile_hint=True)),
}

_OWN_MODEL: Final = RoundingModel(tanh_units=24.0)
"""An exponential off by 6 units moves the quotient just above 1/4 by 13, and so do four roundings, one of them an
approximate division, by 11 at most; below 1/4 there is a series."""

BUILT_IN_NAMES: Final = tuple(_BUILT_IN)
"""This project's own kernels; each has the name of its family."""


def built_in(name: str) -> Target | None:
    """Return this project's own target of that name, or None. Imports Triton: the backend must be prepared before."""
    if name not in _BUILT_IN:
        return None
    place, domain = _BUILT_IN[name]
    module, _, function = place.partition(":")
    launcher = getattr(importlib.import_module(f"fuzz_attn.kernels.{module}"), function)
    return Target(name=name, call=launcher, domain=domain, model=_OWN_MODEL)


def load_target(spec: str, family: Family | None = None) -> Target:
    """Return the target that a specification names.

    ``spec`` is a built-in name, an entry point of the group ``fuzz_attn.targets``, ``module:function`` or
    ``path.py:function``; what it names is a callable or a :class:`Target`. ``family`` None takes the one whose
    signature fits. Raises :class:`TargetError` in one line for anything that does not load or fit.
    """
    with torch_defaults.of_targets():
        return _loaded(spec, family)


def _loaded(spec: str, family: Family | None) -> Target:
    found = built_in(spec) or _from_entry_point(spec, family)
    if found is not None:
        return found
    if ":" not in spec:
        known = ", ".join(target_names())
        raise TargetError(f"target={spec!r} must be module:function, path.py:function or one of: {known}")
    place, _, attribute = spec.rpartition(":")
    return as_target(_attribute(_module(place, spec), attribute, spec), spec, family)


def target_names() -> tuple[str, ...]:
    """Return every name that stands for a target: the built-in ones, then the entry points."""
    return (*BUILT_IN_NAMES, *(point.name for point in _points()))


def as_target(found: object, name: str, family: Family | None = None) -> Target:
    """Return a target of a callable, its domain derived from its signature; a Target is returned as it is."""
    if isinstance(found, Target):
        return found
    if not callable(found):
        raise TargetError(f"target={name!r} must be callable, and is a {type(found).__name__}")
    try:
        signature = signature_of(found)
    except TargetError as error:
        raise TargetError(f"target={name!r} {error}") from error
    family = _family_of(signature, name, family)
    return Target(name=name, call=found, domain=BINDINGS[family].domain(signature))


def _family_of(signature: Signature, name: str, family: Family | None) -> Family:
    reasons = {}
    for candidate in [family] if family else list(BINDINGS):
        reasons[candidate] = BINDINGS[candidate].fits(signature)
        if not reasons[candidate]:
            return candidate
    listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    raise TargetError(f"target={name!r} has a signature that fits no family ({listed})")


def _points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _from_entry_point(spec: str, family: Family | None) -> Target | None:
    for point in _points():
        if point.name == spec:
            try:
                return as_target(point.load(), spec, family)
            except (ImportError, AttributeError) as error:
                raise TargetError(f"target={spec!r} (entry point {point.value}) does not load: {error}") from error
    return None


def _module(place: str, spec: str) -> ModuleType:
    try:
        return _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except TargetError:
        raise
    except Exception as error:  # importing runs anybody's code, which may raise anything
        raise TargetError(f"target={spec!r} does not import: {type(error).__name__}: {error}") from error


def _module_of_file(path: Path) -> ModuleType:
    """Import one file under its own name; files beside it can be imported by it, as when Python runs it."""
    if not path.is_file():
        raise TargetError(f"target file {str(path)!r} does not exist")
    specification = importlib.util.spec_from_file_location(f"fuzz_attn_target_{path.stem}", path.resolve())
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    sys.path.append(str(path.resolve().parent))
    specification.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, attribute: str, spec: str) -> object:
    found: object = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise TargetError(f"target={spec!r}: {module.__name__} has no {part!r}") from error
    return found
