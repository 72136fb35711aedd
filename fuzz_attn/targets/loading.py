"""Loading: finds a target by its name, entry point, module or file, or in a package that is not installed."""

from __future__ import annotations

import importlib
import importlib.util
import re
import reprlib
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec.structs import asdict
from msgspec.structs import replace as changed

from fuzz_attn.binding.binding import DECORATED, Binding, Constant, arguments_of, binding_of, python_value, signature_of
from fuzz_attn.binding.matching import match_of
from fuzz_attn.binding.promises import declared, domain_of, stated_features
from fuzz_attn.case.parts import MOST_CONFIGURATIONS
from fuzz_attn.errors import BindingError, DomainError, FuzzAttnError, TargetError
from fuzz_attn.foreign_files import target_points
from fuzz_attn.targets.built_in import BUILT_IN_NAMES, built_in
from fuzz_attn.targets.importing import Folder, answers_of, import_published
from fuzz_attn.targets.process_state import restored_process_state, target_defaults
from fuzz_attn.targets.target import Target

if TYPE_CHECKING:
    from fuzz_attn.case.domain import Domain
    from fuzz_attn.case.families import Family

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
    fitting = [binding for pattern, binding in _known_binding().items() if fnmatchcase(name, pattern)]
    of_family = [binding for binding in fitting if family is not None and binding.family == family]
    return next(iter(of_family + fitting), None)


@cache
def _known_binding() -> dict[str, Binding]:
    tables = tomllib.loads(resources.files(__package__).joinpath("bindings.toml").read_text(encoding="utf-8"))
    return {pattern: binding for pattern, table in tables.items() if (binding := binding_of(table)) is not None}


def with_known(known: Binding | None, stated: Binding | None, family: str | None) -> Binding | None:
    """Return what a user states, completed by what is known; the user's wins, and a whole binding stays as it is."""
    if known is None or (stated is not None and stated.whole):
        return stated
    if family is not None:
        known = changed(known, family=None)
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
    return changed(known, **changes)


_NOTHING = Binding()


def configurations_of(call: Callable[..., object]) -> int:
    """Return the most configurations of an autotuner that a callable names, or a function that it calls; 1 without any.

    Only functions of the callable's own package, or file, are followed. A kernel that is found in another way, for
    example in a table, is not seen.
    """
    if "triton" not in sys.modules:
        return 1
    from fuzz_attn.ttir.triton_compat import configurations_in  # noqa: PLC0415 - imports Triton

    return min(MOST_CONFIGURATIONS, max((1, *map(configurations_in, _reached(call)))))


def _reached(call: Callable[..., object]) -> Iterator[object]:
    """Yield what the functions name that a callable leads to, each once."""
    seen: set[int] = set()
    waiting: list[object] = [call]
    own = str(getattr(call, "__module__", "")).partition(".")[0]
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        function = found.__func__ if isinstance(found, MethodType) else getattr(found, "__wrapped__", found)
        function = function if isinstance(function, FunctionType) else _called(found)
        if function is not None and str(function.__module__).partition(".")[0] == own:
            waiting += _named_in(function)


def _called(found: object) -> FunctionType | None:
    """Return the function of an object that is called as one, such as a module of torch or an instance of a class."""
    kind = found if isinstance(found, type) else type(found)
    for name in ("forward", "__call__"):
        function = vars(kind).get(name)
        if isinstance(function, FunctionType):
            return function
    return None


def _named_in(function: FunctionType) -> Iterator[object]:
    """Yield the globals, variables of outer functions and attributes of modules that a function names."""
    names = {name for code in _codes_of(function.__code__) for name in code.co_names}
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a variable that has no value yet
            continue
    yield from found
    for module in found:
        if isinstance(module, ModuleType):
            yield from (vars(module)[name] for name in names if name in vars(module))


def _codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_of(constant)


_MODULE_OF_FILE: Final = "fuzz_attn_target_{}"
"""The name of a module that was imported from a target's file."""


def load_target(spec: str, family: str | None = None, binding: Binding | None = None) -> Target:
    """Return the target that a specification names.

    ``spec`` is a built-in name, an entry point of the group ``fuzz_attn.targets``, ``module:function``,
    ``path.py:function``, ``PACKAGE==VERSION:module:function`` for a published wheel, or ``FOLDER::module:function`` for
    a checkout. It names a callable or a :class:`Target`. ``binding`` states what the callable's signature does not
    tell; it wins over the binding of a Target, and a built-in target takes none. With ``family`` None the signature
    decides. Raises :class:`TargetError`, with a message of one line, if nothing loads or fits.
    """
    with restored_process_state(), target_defaults():
        return _loaded(spec, family, binding)


def _loaded(spec: str, family: str | None, binding: Binding | None) -> Target:
    if spec in BUILT_IN_NAMES and binding is not None:
        stated = reprlib.repr(msgspec.to_builtins(binding))
        raise TargetError(f"binding={stated} must not be stated for target={spec!r}, which is built in")
    found = built_in(spec) or _from_entry_point(spec, family, binding)
    if found is not None:
        return found
    binding = with_known(_known(spec, family, binding), binding, family)
    return as_target(_found(spec, binding.instance if binding is not None else None), spec, family, binding)


def _found(spec: str, instance: dict[str, Constant] | None) -> object:
    """Return what a specification of a module, a file or a package names."""
    place = place_of(spec)
    if place is None and ":" not in spec:
        known = ", ".join(target_names())
        raise TargetError(f"target={spec!r} must be module:function, path.py:function or one of: {known}")
    module, _, attribute = spec.rpartition(":")
    holder = _published(place) if place is not None else _module(module, spec)
    return _attribute(holder, place.attribute if place is not None else attribute, spec, instance)


def object_named(spec: str) -> object:
    """Return the object that ``module:function`` or another specification names; raises :class:`TargetError`."""
    with restored_process_state(), target_defaults():
        return _found(spec, None)


def known_of(spec: str, binding: Binding | None) -> Binding:
    """Return what a user states of a target, completed by what this package knows of it."""
    return with_known(_known(spec, None, binding), binding, None) or Binding()


def _known(spec: str, family: str | None, binding: Binding | None) -> Binding | None:
    """Return what this package knows of a target in a family, which the command line names or else a binding file."""
    return known_binding(place_of(spec), family or (binding.family if binding is not None else None))


def is_known(spec: str, binding: Binding | None) -> bool:
    """Return whether this package completes the binding that a user states of a target."""
    whole = binding is not None and binding.whole
    return not whole and known_binding(place_of(spec)) is not None and spec not in target_names()


def _published(place: WheelPlace | CheckoutPlace) -> ModuleType:
    """Return a module of a package that is not installed."""
    tree: Folder | Wheel
    if isinstance(place, CheckoutPlace):
        tree = Folder(place.folder)
    else:
        from fuzz_attn.targets.wheel import Wheel  # noqa: PLC0415 - imports requests, for a tenth of a second

        tree = Wheel(place.package, place.version)
    return import_published(tree, place.module, answers_of(place.module.partition(".")[0]))


def target_names() -> tuple[str, ...]:
    """Return the names of all known targets: the built-in ones, then the entry points."""
    return (*BUILT_IN_NAMES, *(point.name for point in target_points()))


def as_target(found: object, name: str, family: str | None = None, binding: Binding | None = None) -> Target:
    """Return a callable as a target whose domain follows from its binding; a Target declares its own.

    Raises :class:`TargetError` for an object that is no target, or whose domain does not fit its binding.
    """
    if isinstance(found, Target):
        return _declared(found, name, binding)
    if _is_kernel(found):
        raise TargetError(f"target={name!r} is a Triton kernel: name the Python function that launches it")
    if not callable(found):
        raise TargetError(f"target={name!r} must be callable, and is a {type(found).__name__}")
    try:
        signature = signature_of(found)
        own = match_of(signature, cast("Family | None", family), binding).binding
        domain = msgspec.structs.replace(domain_of(own), arguments=arguments_of(signature, own))
    except (TargetError, BindingError, DomainError) as error:
        raise TargetError(f"target={name!r} {error}") from error
    domain = with_configurations(domain, found, binding)
    return Target(name=name, call=found, domain=domain, binding=binding, promised=stated_features(binding))


def with_configurations(domain: Domain, call: Callable[..., object], binding: Binding | None) -> Domain:
    """Return a domain with the configurations of the kernels that a callable launches, unless they are stated."""
    if domain.configurations > 1 or (binding is not None and "configurations" in binding.domain):
        return domain
    return msgspec.structs.replace(domain, configurations=configurations_of(call))


def _is_kernel(found: object) -> bool:
    """Return whether an object is a kernel as Triton's decorators make it."""
    return type(found).__module__.startswith("triton.") and hasattr(found, "__getitem__")


def _declared(found: Target, name: str, binding: Binding | None) -> Target:
    try:
        target = found if binding is None else replace(found, binding=binding)
        promised = stated_features(target.stated, target.domain)
        domain = with_configurations(declared(target.domain, target.match.binding), target.call, target.stated)
        if target.match.binding.paths:
            domain = msgspec.structs.replace(domain, arguments=arguments_of(target.signature, target.match.binding))
        return replace(target, domain=domain, promised=promised)
    except FuzzAttnError as error:
        raise TargetError(f"target={name!r} {error}") from error


def _from_entry_point(spec: str, family: str | None, binding: Binding | None) -> Target | None:
    for point in target_points():
        if point.name == spec:
            try:
                return as_target(point.load(), spec, family, binding)
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
    imported = _imported(path.resolve())
    if imported is not None:
        return imported
    specification = importlib.util.spec_from_file_location(_MODULE_OF_FILE.format(path.stem), path.resolve())
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    sys.path.append(str(path.resolve().parent))
    specification.loader.exec_module(module)
    return module


def _imported(path: Path) -> ModuleType | None:
    """Return the module of a file that this process has imported by another way than this one.

    So a test judges the kernel that it has itself imported, or defines.
    """
    own = _MODULE_OF_FILE.format("")
    places = ((name, vars(module).get("__file__")) for name, module in [*sys.modules.items()] if module is not None)
    return next((sys.modules[name] for name, file in places if file == str(path) and not name.startswith(own)), None)


def _attribute(module: ModuleType, attribute: str, spec: str, instance: dict[str, Constant] | None = None) -> object:
    """Return an attribute of a module; with ``instance``, the arguments of its constructor, that of a new instance."""
    found: object = module
    for part in attribute.split("."):
        if instance is not None and isinstance(found, type):
            found = _instance(found, instance, spec)
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise TargetError(f"target={spec!r}: {module.__name__} has no {part!r}") from error
    return getattr(found, DECORATED, found) if isinstance(found, FunctionType) else found


def _instance(made: type, arguments: dict[str, Constant], spec: str) -> object:
    try:
        return made(**{name: python_value(value) for name, value in arguments.items()})
    except Exception as error:  # the constructor is the user's code, which may raise anything
        raise TargetError(f"target={spec!r}: {made.__name__}(...) raised {type(error).__name__}: {error}") from error


class OtherVersion:
    """The modules of another version of a target, which are found only within ``active``.

    They have the names of the target's own modules: those of its package, or those in the folder of its file.
    """

    def __init__(self, target: Target) -> None:
        self._own = _modules_of(target)
        self._tops = {name.partition(".")[0] for name in self._own}
        self._other: dict[str, ModuleType] = {}
        self._finders: list[Any] = sys.meta_path[:]
        folder = _folder_of(sys.modules[target.call.__module__]) if self._own else None
        self._path = [place for place in sys.path if Path(place).resolve() != folder]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Hide the target's own modules, and find those that the other version has imported within earlier."""
        finders, path, self._own = sys.meta_path[:], sys.path[:], self._taken()
        sys.modules.update(self._other)
        sys.meta_path[:], sys.path[:] = self._finders, self._path
        try:
            yield
        finally:
            self._other, self._finders, self._path = self._taken(), sys.meta_path[:], sys.path[:]
            sys.modules.update(self._own)
            sys.meta_path[:], sys.path[:] = finders, path

    def _taken(self) -> dict[str, ModuleType]:
        """Remove the modules of the names, and return them."""
        names = [name for name in sys.modules if name.partition(".")[0] in self._tops]
        return {name: sys.modules.pop(name) for name in names}


def _modules_of(target: Target) -> dict[str, ModuleType]:
    """Return the modules that belong to a target; none of this package's own."""
    name = str(getattr(target.call, "__module__", ""))
    top, dot, _ = name.partition(".")
    if name not in sys.modules or top == __name__.partition(".")[0]:
        return {}
    folder = None if dot else _folder_of(sys.modules[name])
    return {
        known: module
        for known, module in sys.modules.items()
        if known.partition(".")[0] == top
        or (folder is not None and not known.startswith("__") and _folder_of(module) == folder)
    }


def _folder_of(module: ModuleType) -> Path | None:
    """Return the folder of a module's file; None where it has none, or one without a folder, as torch.ops has."""
    file = getattr(module, "__file__", None)
    return Path(file).resolve().parent if isinstance(file, str) and Path(file).is_absolute() else None
