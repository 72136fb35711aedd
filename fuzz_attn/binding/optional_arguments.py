"""Optional arguments: those of a signature that no role has, and the values that a binding's paths give them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final

from fuzz_attn.binding.binding import Binding, PathValue, python_value
from fuzz_attn.binding.signature import Signature
from fuzz_attn.errors import BindingError

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
