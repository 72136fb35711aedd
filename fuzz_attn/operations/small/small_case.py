"""Small case: aspects of the fields of a case, and what every domain of a small operation has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from fuzz_attn.case.aspects import Aspect
from fuzz_attn.errors import CaseError, DomainError

C = TypeVar("C", bound=str)

FAR_AXES: Final = "far_axes"
"""The field of a case with the axes along which tensors span 2^31 elements, ``tensor_axis`` each, and its feature."""
MOST_FAR_ELEMENTS: Final = 2**22
"""Elements of a tensor times the indices of its far axis, each of which has memory of its own."""
MOST_FAR: Final = 256
"""Indices of a far axis at most; with more, no stride would be that of a far axis."""


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


def far_aspect(most: int) -> Aspect:
    """Return the aspect of the far axes of a case, of which there are at most so many; the shrinker drops each."""
    smaller = tuple(partial(_nearer, place=place) for place in range(most))
    return when("elements far apart", lambda case: bool(case.far_axes), smaller, far_axes=())


def _nearer(case: Any, *, place: int) -> Any:
    return replace(case, far_axes=case.far_axes[:place] + case.far_axes[place + 1 :])


def fitting(names: Iterable[C], lengths: Mapping[str, int], num_elements: int) -> tuple[C, ...]:
    """Return those of the far axes that a case has, of not too many indices and not too much memory.

    ``lengths`` are the used indices of each axis. Raises ``CaseError`` for two axes of one tensor.
    """
    kept = tuple(name for name in names if 0 < lengths.get(name, 0) <= min(MOST_FAR, MOST_FAR_ELEMENTS // num_elements))
    tensors = [name.rpartition("_")[0] for name in kept]
    if len(set(tensors)) < len(tensors):
        raise CaseError(f"far_axes={kept} must name one axis of each tensor")
    return kept


def far_words(names: Iterable[str]) -> list[str]:
    """Return far axes in words."""
    return [f"{axis}s of {tensor} spread over 2^31 elements" for tensor, _, axis in (n.rpartition("_") for n in names)]


def when(
    words: str, holds: Callable[[Any], bool], smaller: tuple[Callable[[Any], Any], ...] = (), **plain: Any
) -> Aspect:
    """Return a trait that a case loses with some fields; the shrinker also tries the changes ``smaller``."""
    return Aspect(words, holds, lambda case, on: case if on else replace(case, **plain), smaller=smaller)


def _with(case: Any, value: Any, *, name: str) -> Any:
    return replace(case, **{name: value})
