"""Importing: makes the modules of a package that is not installed importable, with stubs for what is not there.

Importing a launcher of a large project imports much of the project: its configuration, its logger, its compiled
extension. So an ``__init__.py`` runs only when one of its names is asked for, and not for a submodule that it does not
name; a module that fails to import becomes a stub, and so does one that the package lacks.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

from fuzz_attn.errors import TargetError
from fuzz_attn.targets.gpu_answers import answering

_QUESTIONS: Final = ("is_", "has_", "use_", "supports_", "enable_")


class Tree(Protocol):
    """The files of a package."""

    def file(self, name: str) -> Path | None:
        """Return the path of a file by its name with slashes; None if there is none."""

    def provide(self, prefix: str) -> None:
        """Put all files whose names begin with a prefix in place."""


class Folder:
    """The files of a checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, name: str) -> Path | None:
        """Return the path of a file by its name with slashes; None if there is none."""
        path = self.folder / name
        return path if path.is_file() else None

    def provide(self, prefix: str) -> None:
        """Do nothing: all files are in place."""


class LazyPackage(ModuleType):
    """A package whose ``__init__.py`` runs when one of its names is asked for; a name that it lacks is a stub.

    ``has_module`` says whether the tree has a module of a full name.
    """

    def __init__(self, name: str, file: Path | None, answers: Answers, has_module: Callable[[str], bool]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__file__ = str(file) if file else None
        self._source = file
        self._answers = answers
        self._has_module = has_module

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(f"package {self.__name__} has no {attribute}")
        if self._source is not None and self._is_only_submodule(attribute, self._source):
            return importlib.import_module(f"{self.__name__}.{attribute}")
        source, self._source = self._source, None
        if source is not None:
            _execute(self, source)
        if attribute in vars(self):
            return vars(self)[attribute]
        own = vars(self).get("__getattr__")
        if own is not None:
            return own(attribute)
        return answer(f"{self.__name__}.{attribute}", self._answers)

    def _is_only_submodule(self, name: str, source: Path) -> bool:
        """Return whether a name is a module and nothing that the ``__init__.py`` may define.

        That of vLLM imports torch's compiler, which takes three seconds in each worker.
        """
        named = re.search(rf"\b{re.escape(name)}\b|\bimport \*", source.read_text(errors="replace"))
        return named is None and self._has_module(f"{self.__name__}.{name}")


def _execute(package: LazyPackage, source: Path) -> None:
    """Run an ``__init__.py``; what it could not define are stubs."""
    try:
        exec(compile(source.read_bytes(), source, "exec"), vars(package))  # noqa: S102 - the target's own code
    except Exception as error:  # noqa: BLE001 - an import of a large project may fail in any way
        package.__doc__ = f"Incomplete: {type(error).__name__}: {error}"
    _tell(package, package._answers)


def _tell(module: ModuleType, answers: Answers) -> None:
    """Set what a module is told on a machine without a GPU."""
    if answering():
        vars(module).update(answers.without_gpu.get(module.__name__, {}))


class Finder(MetaPathFinder, Loader):
    """Finds the modules of a package in a tree of files; ``required`` must import, others may be stubs."""

    def __init__(self, tree: Tree, top: str, required: str, answers: Answers) -> None:
        self._tree = tree
        self._top = top
        self._required = required
        self._answers = answers

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the specification of a module of the package, which always exists, if only as a stub."""
        del path, target
        if name.partition(".")[0] != self._top:
            return None
        return ModuleSpec(name, self, is_package=self._file(name, package=True) is not None)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the module: a real one, a package that runs later, or a stub."""
        if self._is_stubbed(spec.name):
            return StubModule(spec.name, self._answers, "its answers are given")
        if self._file(spec.name, package=False) is not None:
            return None
        file = self._file(spec.name, package=True)
        if file is not None or self._is_folder(spec.name):
            return LazyPackage(spec.name, file, self._answers, self._has_module)
        if spec.name == self._required:
            raise ModuleNotFoundError(f"no module named {spec.name!r}", name=spec.name)
        return StubModule(spec.name, self._answers, "the package has no such Python module")

    def exec_module(self, module: ModuleType) -> None:
        """Run a real module; replace it by a stub if it fails and the target is not in it."""
        if isinstance(module, StubModule | LazyPackage):
            return
        name = module.__name__
        file = self._file(name, package=False)
        assert file is not None
        module.__file__ = str(file)
        try:
            exec(compile(file.read_bytes(), file, "exec"), vars(module))  # noqa: S102 - the target's own code
            _tell(module, self._answers)
        except Exception as error:
            if name == self._required:
                raise
            sys.modules[name] = StubModule(name, self._answers, f"it raised {type(error).__name__}: {error}")

    def _has_module(self, name: str) -> bool:
        return any(self._file(name, package=package) is not None for package in (False, True))

    def _is_stubbed(self, name: str) -> bool:
        return name in self._answers.modules and name != self._required

    def _file(self, name: str, *, package: bool) -> Path | None:
        path = name.replace(".", "/")
        return self._tree.file(f"{path}/__init__.py" if package else f"{path}.py")

    def _is_folder(self, name: str) -> bool:
        return self._required.startswith(f"{name}.")


def import_published(tree: Tree, module: str, answers: Answers) -> ModuleType:
    """Return a module of a tree, imported; its package is found in the tree from now on.

    Raises :class:`TargetError` where the module does not import, or where another copy of its package is imported.
    """
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    if loaded is not None and not isinstance(loaded, LazyPackage | StubModule):
        raise TargetError(f"package {top!r} is already imported from {getattr(loaded, '__file__', 'elsewhere')}")
    for prefix in answers.files:
        tree.provide(prefix)
    for variable, value in answers.environment.items():
        os.environ.setdefault(variable, value)
    sys.meta_path.insert(0, Finder(tree, top, module, answers))
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise TargetError(f"module {module!r} does not import: {type(error).__name__}: {error}") from error


class Stub:
    """Any attribute, function, class or decorator of a module that is not there.

    It is false, its attributes are stubs, and a call returns a stub. Stubs of one name are equal, as a default and the
    constant that it is compared with. A name such as ``is_rocm`` or ``HAS_CUDA`` is a
    question, whose answer is False, where ``answers`` has no other. Called with one function it returns the function,
    as a decorator may.
    """

    def __init__(self, name: str, answers: Answers) -> None:
        self._name = name
        self._answers = answers
        self.__name__ = self.__qualname__ = name.rpartition(".")[2]

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(f"{self._name} is a stub without {attribute}")
        return answer(f"{self._name}.{attribute}", self._answers)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return the answer to a question, the function that the stub decorates, or a stub."""
        if f"{self._name}()" in self._answers.values:
            return self._answers.values[f"{self._name}()"]
        if _is_question(self._name):
            return False
        if len(arguments) == 1 and not options and callable(arguments[0]) and not isinstance(arguments[0], Stub):
            return arguments[0]
        return Stub(f"{self._name}()", self._answers)

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stub) and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return ()

    def __or__(self, other: object) -> Stub:
        return self

    __ror__ = __or__

    def __getitem__(self, key: object) -> Stub:
        return self

    def __iter__(self) -> Iterator[Any]:
        """Return an empty iterator; by ``__getitem__`` a loop over the stub would not end."""
        return iter(())

    def __len__(self) -> int:
        return 0

    def __add__(self, other: object) -> Any:
        """Return the other operand, as if the stub were empty."""
        return other

    __radd__ = __add__

    def __repr__(self) -> str:
        return f"<stub {self._name}>"


class StubModule(ModuleType):
    """A module that is not there; ``reason`` says why."""

    def __init__(self, name: str, answers: Answers, reason: str) -> None:
        super().__init__(name, f"A stub: {reason}")
        self.__path__: list[str] = []
        self.stub_reason = reason
        self._answers = answers

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(f"module {self.__name__} is a stub without {attribute}")
        return answer(f"{self.__name__}.{attribute}", self._answers)


def answer(name: str, answers: Answers) -> Any:
    """Return the value of a name: its answer, else False for a constant that is a question, else a stub."""
    if name in answers.values:
        return answers.values[name]
    last = name.rpartition(".")[2]
    if last.isupper() and _is_question(name):
        return False
    return Stub(name, answers)


def _is_question(name: str) -> bool:
    return name.rpartition(".")[2].lower().startswith(_QUESTIONS)


@dataclass(frozen=True)
class Answers:
    """The modules that are always stubs, and values by dotted name: ``name`` of an attribute, ``name()`` of a call.

    ``environment`` has variables that the package reads, ``files`` prefixes of files that it does not
    import. ``without_gpu`` has attributes of modules that run on a machine without a GPU.
    """

    modules: frozenset[str] = frozenset()
    values: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    without_gpu: dict[str, dict[str, Any]] = field(default_factory=dict)


def answers_of(package: str) -> Answers:
    """Return the answers for a package.

    The file has a table for each module that is replaced by a stub, with its attributes. A value such as
    ``"torch.float8_e4m3fn"`` is the dtype of that name, and ``"None"`` Python's None, which TOML lacks.
    """
    told = tomllib.loads(resources.files(__package__).joinpath("answers.toml").read_text())
    tables = {module: table for module, table in told["modules"].items() if _within(module, package)}
    values = {f"{module}.{name}": _value(value) for module, table in tables.items() for name, value in table.items()}
    needs = told["packages"].get(package, {})
    without_gpu = {module: table for module, table in told["without_gpu"].items() if _within(module, package)}
    environment, files = needs.get("environment", {}), tuple(needs.get("files", ()))
    return Answers(frozenset(tables), values, environment, files, without_gpu)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _value(value: object) -> object:
    import torch  # noqa: PLC0415 - heavy

    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return None if value == "None" else value
