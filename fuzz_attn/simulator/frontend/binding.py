"""The arguments of a launch: which parameter each one binds, how it is typed, and the program they select."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from fuzz_attn.simulator.errors import LoweringError, UnsupportedOperation
from fuzz_attn.simulator.findings import Location
from fuzz_attn.simulator.frontend.lowering import TORCH_TYPES, scalar_type
from fuzz_attn.simulator.runtime.ranges import HIGH, LOW

MOST_FORMS: Final = 1024
"""So many forms of a call are remembered for each kernel; a campaign makes some dozens."""


_TOLD_BY_TEXT: Final = frozenset({float, tuple})
"""Types of constants that may be equal and not the same: 0.0 and -0.0, (1,) and (True,)."""


def told(constant: Any) -> str:
    """Return what tells a constant from others: a function keeps its name when its source changes."""
    if isinstance(constant, tuple):
        return f"({', '.join(map(told, constant))})"
    return str(getattr(constant, "cache_key", None) or repr(constant))


class Key:
    """What selects a program among those of one kernel: types and constants. Its hash is computed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: tuple[object, ...]) -> None:
        self._parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Key) and self._parts == other._parts)


@dataclass(frozen=True, slots=True)
class Form:
    """What calls with arguments of the same types and with the same constants have in common.

    `passed` are the names of the arguments that are no constants, with their types, in order.
    """

    signature: dict[str, str]
    key: Key
    passed: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Bound:
    """A launch's arguments by parameter name, and the form of the call."""

    values: dict[str, Any]
    form: Form

    @property
    def signature(self) -> dict[str, str]:
        """The type of each parameter."""
        return self.form.signature

    def constants(self) -> dict[str, Any]:
        """Return the values that are part of the program."""
        return {name: self.values[name] for name, type_ in self.signature.items() if type_ == "constexpr"}


class Binder:
    """Binds arguments to the parameters of one kernel."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._names: list[str] = list(kernel.arg_names)
        self._parameters = [
            (parameter.name, bool(parameter.is_constexpr), _annotation(parameter), "*k" if parameter.is_const else "*")
            for parameter in kernel.params
        ]
        self._pick = _picker(self._parameters)
        self._forms: dict[object, Form] = {}
        signature = kernel.signature.parameters
        self._defaults = {
            name: parameter.default for name, parameter in signature.items() if parameter.default is not parameter.empty
        }

    def bind(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Bound:
        """Return the bound arguments; keywords that are no parameters are launch options and are ignored."""
        given = {**self._defaults, **keywords, **dict(zip(self._names, arguments, strict=False))}
        try:
            values = {name: given[name] for name, _, _, _ in self._parameters}
        except KeyError as error:
            raise TypeError(f"{self.kernel.__name__}() misses the argument {error}") from None
        constants, others = self._pick(values)
        wide = [value for value in others if value.__class__ is int and not LOW <= value <= HIGH]
        if wide:
            return Bound(values, self._form(values))
        types = (*map(type, constants), *map(type, others), *[getattr(value, "dtype", None) for value in others])
        constants = tuple([told(value) if value.__class__ in _TOLD_BY_TEXT else value for value in constants])
        try:
            form = self._forms.get((types, constants))
        except TypeError:  # a constant that has no hash
            return Bound(values, self._form(values))
        if form is None:
            form = self._form(values)
            if len(self._forms) < MOST_FORMS:
                self._forms[types, constants] = form
        return Bound(values, form)

    def _form(self, values: dict[str, Any]) -> Form:
        signature: dict[str, str] = {}
        key: list[object] = []
        for name, constant, annotation, pointer in self._parameters:
            value = values[name]
            if constant or value is None:
                signature[name] = "constexpr"
                key.append((type(value), _hashable(value)))
            else:
                type_ = signature[name] = _argument_type(name, value, annotation, pointer)
                key.append(type_)
        passed = tuple((name, type_) for name, type_ in signature.items() if type_ != "constexpr")
        return Form(signature, Key(tuple(key)), passed)


def _picker(
    parameters: list[tuple[str, bool, str, str]],
) -> Callable[[dict[str, Any]], tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Return a function that parts values by name into constants and others."""
    constants = [name for name, constant, _, _ in parameters if constant]
    others = [name for name, constant, _, _ in parameters if not constant]

    def pick(values: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple([values[name] for name in constants]), tuple([values[name] for name in others])

    return pick


def _annotation(parameter: Any) -> str:
    annotation = parameter.annotation_type
    return annotation if isinstance(annotation, str) else ""


def _hashable(value: Any) -> object:
    if value.__class__ in _TOLD_BY_TEXT:
        return told(value)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def _argument_type(name: str, value: Any, annotation: str, pointer: str) -> str:
    if isinstance(value, (bool, int, float)):
        return annotation or scalar_type(value)
    if isinstance(value, torch.Tensor):
        known = TORCH_TYPES.get(value.dtype)
        if known is None:
            raise LoweringError(f"argument {name!r} has the type {value.dtype}, which the simulator does not know")
        return f"{pointer}{known[0]}"
    if hasattr(value, "base") and hasattr(value, "dtype") and hasattr(value, "data_ptr"):
        return f"*{value.dtype}"  # triton.reinterpret's wrapper, with one of Triton's types
    raise UnsupportedOperation(f"argument {name!r} of {type(value).__name__}", Location())


def grid_of(grid: Any, values: dict[str, Any]) -> tuple[int, int, int]:
    """Return the three extents of a launch's grid: a tuple, or a function of the arguments."""
    extents: Any = grid(values) if isinstance(grid, Callable) else grid  # type: ignore[arg-type]  # an abstract class
    if isinstance(extents, int):
        extents = (extents,)
    padded = [int(extent) for extent in extents] + [1, 1, 1]
    return (padded[0], padded[1], padded[2])
