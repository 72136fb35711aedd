"""Stubs: stand in for the modules and functions of a package that are not there, and give the answers of its table."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from types import ModuleType
from typing import Any, Final

_QUESTIONS: Final = ("is_", "has_", "use_", "supports_", "enable_")


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
