"""The arguments of a launch: which parameter each one binds, how it is typed, and the program they select."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .errors import LoweringError, UnsupportedOperation
from .findings import Location
from .lowering import TORCH_TYPES, scalar_type

Key = tuple[object, ...]


@dataclass(slots=True)
class Bound:
    """A launch's arguments by parameter name, its signature, and the key that selects a program."""

    values: dict[str, Any]
    signature: dict[str, str]
    key: Key

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
        signature = kernel.signature.parameters
        self._defaults = {
            name: parameter.default for name, parameter in signature.items() if parameter.default is not parameter.empty
        }

    def bind(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Bound:
        """Return the bound arguments; keywords that are no parameters are launch options and are ignored."""
        given = {**self._defaults, **keywords, **dict(zip(self._names, arguments, strict=False))}
        values: dict[str, Any] = {}
        signature: dict[str, str] = {}
        key: list[object] = []
        for name, constant, annotation, pointer in self._parameters:
            if name not in given:
                raise TypeError(f"{self.kernel.__name__}() misses the argument {name!r}")
            value = values[name] = given[name]
            if constant or value is None:
                signature[name] = "constexpr"
                key.append((type(value), _hashable(value)))
            else:
                type_ = signature[name] = _argument_type(name, value, annotation, pointer)
                key.append(type_)
        return Bound(values, signature, tuple(key))


def _annotation(parameter: Any) -> str:
    annotation = parameter.annotation_type
    return annotation if isinstance(annotation, str) else ""


def _hashable(value: Any) -> object:
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
