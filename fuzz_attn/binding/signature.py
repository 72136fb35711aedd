"""Signature: the parameters of a callable, and those of them that are optional: that no role has."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fuzz_attn.binding.binding import Binding, PathValue, python_value
from fuzz_attn.errors import BindingError, TargetError

Names: TypeAlias = frozenset[str]
DECORATED: Final = "decorated_by_fuzz_attn"
"""The attribute of a test that holds the function which ``fuzz_attn.fuzz`` decorates, and which the test fuzzes."""


@dataclass(frozen=True)
class Signature:
    """The parameters of a callable.

    ``names`` can be passed by keyword, in the order of the signature; ``required`` are those of them without a default.
    ``positional`` are required and cannot be passed by keyword. ``takes_any_keyword`` is true for a callable with
    ``**kwargs``. ``defaults`` are the values of the others, ``annotations`` the text of each annotation.
    """

    names: tuple[str, ...]
    required: Names
    positional: Names
    takes_any_keyword: bool
    defaults: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    def takes(self, name: str) -> bool:
        """Return whether the argument can be passed by keyword."""
        return self.takes_any_keyword or name in self.names


def signature_of(call: Callable[..., object]) -> Signature:
    """Return the parameters of a callable, also of one that Triton or functools wrapped."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError) as error:
        raise TargetError(f"has no signature that could be read: {error}") from error
    keyword = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Signature(
        names=tuple(p.name for p in keyword),
        required=frozenset(p.name for p in keyword if p.default is p.empty),
        positional=frozenset(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty),
        takes_any_keyword=any(p.kind is p.VAR_KEYWORD for p in parameters),
        defaults={p.name: p.default for p in keyword if p.default is not p.empty},
        annotations={p.name: _text(p.annotation) for p in keyword if p.annotation is not p.empty},
    )


def _text(annotation: Any) -> str:
    if isinstance(annotation, str) or "Literal[" in str(annotation):
        return str(annotation)
    return str(getattr(annotation, "__name__", annotation))


_LITERAL: Final = re.compile(r"Literal(\[[^\[\]]*\])")


def unexercised(signature: Signature, binding: Binding) -> dict[str, Any]:
    """Return the defaults of the parameters that are neither passed nor paths."""
    bound = {*binding.roles, *binding.without_role, *binding.paths}
    return {name: default for name, default in signature.defaults.items() if name not in bound}


def default_in_words(name: str, default: object) -> str:
    """Return an argument with its default, if that is a plain value: ``chunk=-1``."""
    plain = default is None or isinstance(default, bool | int | float | str)
    return f"{name}={default!r}" if plain else name


def other_values(name: str, signature: Signature) -> tuple[PathValue, ...]:
    """Return the other values of an optional argument, where its default or its annotation tells all of them.

    That is so for booleans and for ``Literal``. A number or a text may mean anything.
    """
    default = signature.defaults[name]
    if isinstance(default, bool):
        return (not default,)
    found = _LITERAL.search(signature.annotations.get(name, ""))
    try:
        listed = ast.literal_eval(found[1]) if found else []
    except (ValueError, SyntaxError):  # a name in it, such as one of an enumeration
        return ()
    return tuple(value for value in listed if isinstance(value, bool | int | str) and not _is(value, default))


def arguments_of(signature: Signature, binding: Binding) -> tuple[tuple[str, tuple[PathValue, ...]], ...]:
    """Return the values other than the default of each optional argument that a binding states as a path.

    Raises :class:`BindingError` for a parameter without a default, and for equal values.
    """
    paths = {name: tuple(map(python_value, values)) for name, values in binding.paths.items()}
    for name, values in paths.items():
        if name not in signature.defaults:
            known = ", ".join(signature.defaults) or "it has none"
            raise BindingError(f"paths.{name} must be a parameter with a default: {known}")
        if len(set(values)) < len(values):
            raise BindingError(f"paths.{name}={list(values)} must have different values, and 1 equals true")
    return _beside_defaults(paths, signature)


def _beside_defaults(
    paths: Mapping[str, tuple[PathValue, ...]], signature: Signature
) -> tuple[tuple[str, tuple[PathValue, ...]], ...]:
    others = {
        name: tuple(value for value in values if not _is(value, signature.defaults[name]))
        for name, values in paths.items()
    }
    return tuple((name, values) for name, values in others.items() if values)


def _is(value: object, default: object) -> bool:
    return type(value) is type(default) and value == default
