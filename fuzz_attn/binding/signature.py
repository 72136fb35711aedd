"""Signature: the parameters of a callable."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fuzz_attn.errors import TargetError

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
