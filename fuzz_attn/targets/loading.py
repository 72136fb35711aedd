"""Loading: finds a target by its name, its entry point, its module or its file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Final

from fuzz_attn.case.families import Family
from fuzz_attn.errors import DomainError, FuzzAttnError, TargetError
from fuzz_attn.targets.bindings import BINDINGS
from fuzz_attn.targets.bindings.binding import Signature, signature_of
from fuzz_attn.targets.built_in import BUILT_IN_NAMES, built_in
from fuzz_attn.targets.process_state import restored_process_state
from fuzz_attn.targets.published.answers import answers_of
from fuzz_attn.targets.published.importing import Folder, import_published
from fuzz_attn.targets.published.place import CheckoutPlace, WheelPlace, place_of
from fuzz_attn.targets.published.wheel import Wheel
from fuzz_attn.targets.target import Target
from fuzz_attn.targets.torch_defaults import target_defaults

ENTRY_POINT_GROUP: Final = "fuzz_attn.targets"


def load_target(spec: str, family: Family | None = None) -> Target:
    """Return the target that a specification names.

    ``spec`` is a built-in name, an entry point of the group ``fuzz_attn.targets``, ``module:function``,
    ``path.py:function``, ``PACKAGE==VERSION:module:function`` for a published wheel, or ``FOLDER::module:function`` for
    a checkout. It names a callable or a :class:`Target`. With ``family`` None the first family that fits the callable's
    signature is taken. Raises :class:`TargetError`, with a message of one line, if nothing loads or fits.
    """
    with restored_process_state(), target_defaults():
        return _loaded(spec, family)


def _loaded(spec: str, family: Family | None) -> Target:
    found = built_in(spec) or _from_entry_point(spec, family)
    if found is not None:
        return found
    place = place_of(spec)
    if place is not None:
        return as_target(_attribute(_published(place), place.attribute, spec), spec, family)
    if ":" not in spec:
        known = ", ".join(target_names())
        raise TargetError(f"target={spec!r} must be module:function, path.py:function or one of: {known}")
    module, _, attribute = spec.rpartition(":")
    return as_target(_attribute(_module(module, spec), attribute, spec), spec, family)


def _published(place: WheelPlace | CheckoutPlace) -> ModuleType:
    """Return a module of a package that is not installed."""
    tree = Folder(place.folder) if isinstance(place, CheckoutPlace) else Wheel(place.package, place.version)
    return import_published(tree, place.module, answers_of(place.module.partition(".")[0]))


def target_names() -> tuple[str, ...]:
    """Return the names of all known targets: the built-in ones, then the entry points."""
    return (*BUILT_IN_NAMES, *(point.name for point in _points()))


def as_target(found: object, name: str, family: Family | None = None) -> Target:
    """Return a callable as a target whose domain follows from its signature; a Target declares its own.

    Raises :class:`TargetError` for an object that is no target, or whose domain does not fit its signature.
    """
    if isinstance(found, Target):
        return _declared(found, name)
    if not callable(found):
        raise TargetError(f"target={name!r} must be callable, and is a {type(found).__name__}")
    try:
        signature = signature_of(found)
    except TargetError as error:
        raise TargetError(f"target={name!r} {error}") from error
    family = _family_of(signature, name, family)
    return Target(name=name, call=found, domain=BINDINGS[family].domain(signature))


def _declared(found: Target, name: str) -> Target:
    binding = BINDINGS[found.family]
    try:
        misfit = binding.misfit(found.signature)
        if misfit:
            raise DomainError(f"domain.family={found.family!r} does not fit its signature: it {misfit}")
        return replace(found, domain=binding.declared(found.domain, found.signature))
    except FuzzAttnError as error:
        raise TargetError(f"target={name!r} {error}") from error


def _family_of(signature: Signature, name: str, family: Family | None) -> Family:
    reasons = {}
    for candidate in [family] if family else list(BINDINGS):
        reasons[candidate] = BINDINGS[candidate].misfit(signature)
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
    except FuzzAttnError as error:
        raise TargetError(f"target={spec!r} {error}") from error
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise TargetError(f"target={spec!r} does not import: {type(error).__name__}: {error}") from error


def _module_of_file(path: Path) -> ModuleType:
    """Return the module of a file; it can import files beside it, as when Python runs it as a script."""
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
