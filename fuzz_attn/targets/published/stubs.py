"""Stubs: stand in for the modules and functions of a package that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from fuzz_attn.targets.published.answers import Answers

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
