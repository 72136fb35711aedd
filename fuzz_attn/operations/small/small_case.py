"""Small case: aspects of the fields of a case, and what every domain of a small operation has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from fuzz_attn.case.aspects import Aspect
from fuzz_attn.errors import DomainError


class SmallDomain(Struct, frozen=True, forbid_unknown_fields=True):
    """The cases that a target promises. A subclass has ``features``, and the tag ``operation`` with its family."""

    @property
    def family(self) -> str:
        """The family of its targets, which is the name of the operation."""
        return str(type(self).__struct_config__.tag)

    @property
    def excluded(self) -> tuple[frozenset[str], ...]:
        """The combinations of features that are not supported together: none."""
        return ()

    def allows(self, feature: str) -> bool:
        """Return whether cases may have the feature."""
        own: Any = self
        return feature in own.features

    def in_memory(self) -> Self:
        """Return the domain without tensors whose addresses mostly take no memory."""
        return self

    def on_gpu(self) -> Self:
        """Return the domain as a GPU has it, where all addresses take memory."""
        return self.in_memory()

    def require(self, known: Mapping[str, Aspect], *needed: tuple[object, ...]) -> None:
        """Raise :class:`DomainError` for an unknown feature, or where one of the ``needed`` choices is empty."""
        own: Any = self
        unknown = sorted(own.features - known.keys())
        if unknown or not all(needed):
            raise DomainError(f"domain={self!r} has unknown features {unknown}, or lacks types or sizes")

    def lacking(self, case: Any, known: Mapping[str, Aspect]) -> str:
        """Return a feature of a case that the domain does not promise, in words; an empty string without one."""
        return next((each.words for name, each in known.items() if each.value(case) and not self.allows(name)), "")


class Fields:
    """Makes aspects of the fields of a case; the defaults are those of the ``plain`` one."""

    def __init__(self, plain: Struct) -> None:
        self._plain = plain

    def field(self, words: str, name: str, *, tried: tuple[Any, ...] = (), **more: Any) -> Aspect:
        """Return an aspect whose value is that of a field; the shrinker tries some values."""
        set_value = partial(_with, name=name)
        smaller = tuple(partial(set_value, value=each) for each in tried)
        value = attrgetter(name)
        return Aspect(words, value, set_value, self._default(name), smaller=smaller, name=name, **more)

    def flag(self, words: str, name: str, form: Any = True) -> Aspect:
        """Return a feature that a case has where a field differs from its default; ``form`` is the simplest value."""
        default = self._default(name)

        def changed(case: Any, on: Any) -> Any:
            return _with(case, form if on else default, name=name)

        return Aspect(words, lambda case: bool(getattr(case, name) != default), changed, has_form=True)

    def _default(self, name: str) -> Any:
        return getattr(self._plain, name)


def when(words: str, holds: Callable[[Any], bool], **plain: Any) -> Aspect:
    """Return a trait that a case loses with some fields."""
    return Aspect(words, holds, lambda case, on: case if on else replace(case, **plain))


def _with(case: Any, value: Any, *, name: str) -> Any:
    return replace(case, **{name: value})
