"""Argument types: a launch's arguments as Triton's front end types them, tensor descriptors included."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from fuzz_attn.errors import UnsupportedOperation
from fuzz_attn.ttir.ir import UNKNOWN_LOCATION
from fuzz_attn.ttir.lowering import TORCH_TYPES, scalar_type
from fuzz_attn.ttir.triton_compat import (
    Parameter,
    defaults_of,
    is_function,
    parameters_of,
    reinterpreted_type,
    source_digest,
)


def is_descriptor(value: object) -> bool:
    """Return whether a value is a tensor descriptor that was made on the host."""
    return isinstance(value, TensorDescriptor)


def descriptor_arguments(name: str, value: Any) -> list[tuple[str, str, Any]]:
    """Return name, type and value of what takes the place of a tensor descriptor argument in the IR.

    The type of the base tensor is left empty.
    """
    sizes = [(f"{name}.shape.{axis}", size) for axis, size in enumerate(value.shape)]
    strides = [(f"{name}.stride.{axis}", stride) for axis, stride in enumerate(value.strides)]
    flags = [(f"{name}.padding", value.padding == "nan")]
    if hasattr(value, "round_f32_to_tf32"):
        flags.append((f"{name}.round", value.round_f32_to_tf32))
    typed = [("i64", sizes), ("i64", strides), ("u1", flags), ("i32", sizes), ("i64", strides)]
    return [(name, "", value.base), *((part, type_, number) for type_, parts in typed for part, number in parts)]


MOST_FORMS: Final = 1024
"""Forms of a call that are kept for each kernel; a campaign makes some dozens."""

Signature: TypeAlias = "str | tuple[Signature, ...]"
"""The type of a parameter as Triton names it: a string, or for a tuple one for each of its elements."""

Path: TypeAlias = tuple[int, ...]
"""Where a constant is: the number of its parameter, then for each tuple around it the number of the element."""

_CONSTANT: Final = "constexpr"

_INT32: Final = range(-(2**31), 2**31)
"""Integers outside of this range have a type that depends on their value."""

_PLAIN: Final = frozenset({int, float, bool, type(None), torch.Tensor})
"""Classes of arguments that are no tuples and no constants besides None."""

_COMPARED_BY_TEXT: Final = (float, tuple)
"""Classes of constants that may be equal but differ: 0.0 and -0.0, (1,) and (True,), also in a NamedTuple."""


def text_of(constant: Any) -> str:
    """Return a text that is equal only for the same constants. A function's is a digest of its source and calls."""
    if isinstance(constant, tuple):
        return f"({', '.join(map(text_of, constant))})"
    if isinstance(constant, tl.constexpr):
        return f"constexpr[{text_of(constant.value)}]"
    return source_digest(constant) if is_function(constant) else repr(constant)


class Key:
    """Types and constants, which select a program among those of one kernel. The hash is computed once."""

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
    """What calls with the same types and the same constants have in common.

    The elements of tuples count as arguments of their own, named `keys.stride` or `keys[1]`, and so do the sizes and
    strides of tensor descriptors. `passed` has the name and
    the type of each argument that is no constant, in order; `places` are their numbers among all arguments that are no
    parameters annotated as constexpr. `constants` says where the constants are.
    """

    signature: dict[str, Signature]
    key: Key
    passed: tuple[tuple[str, str], ...]
    places: tuple[int, ...]
    constants: tuple[Path, ...]


@dataclass(slots=True)
class Bound:
    """A launch's arguments: by parameter name, those that are passed in the order of `form.passed`, and the form."""

    values: dict[str, Any]
    passed: list[Any]
    form: Form

    @property
    def signature(self) -> dict[str, Signature]:
        """The type of each parameter."""
        return self.form.signature

    def constants(self) -> dict[Path, Any]:
        """Return the values that are part of the program."""
        parameters = tuple(self.values.values())
        return {path: functools.reduce(operator.getitem, path, parameters) for path in self.form.constants}


class Binder:
    """Binds arguments to the parameters of one kernel."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._parameters = parameters_of(kernel)
        self._names = [parameter.name for parameter in self._parameters]
        self._constants = [parameter.name for parameter in self._parameters if parameter.is_constexpr]
        self._others = [parameter.name for parameter in self._parameters if not parameter.is_constexpr]
        self._forms: dict[object, Form] = {}
        self._defaults = defaults_of(kernel)

    def bind(self, arguments: tuple[Any, ...], keywords: dict[str, Any], *, constant_ones: bool = False) -> Bound:
        """Return the bound arguments; keywords that are no parameters are launch options and are ignored.

        With `constant_ones`, integers that are 1 become constants, as Triton makes them.
        """
        given = {**self._defaults, **keywords, **dict(zip(self._names, arguments, strict=False))}
        try:
            values = {name: given[name] for name in self._names}
        except KeyError as error:
            raise TypeError(f"{self.kernel.__name__}() misses the argument {error}") from None
        leaves = [values[name] for name in self._others]
        kinds: list[object] = list(map(type, leaves))
        if not _PLAIN.issuperset(kinds):
            leaves, kinds = _flattened(leaves)
        form = self._form(values, constant_ones=True) if constant_ones else self._known_form(values, leaves, kinds)
        return Bound(values, [leaves[place] for place in form.places], form)

    def _known_form(self, values: dict[str, Any], leaves: list[Any], kinds: list[object]) -> Form:
        """Return the form of the call; equal calls share one object if their constants can be hashed."""
        if [value for value in leaves if value.__class__ is int and value not in _INT32]:
            return self._form(values)
        constants = [values[name] for name in self._constants]
        types = (*map(type, constants), *kinds, *[getattr(value, "dtype", None) for value in leaves])
        key = (types, tuple([text_of(value) if isinstance(value, _COMPARED_BY_TEXT) else value for value in constants]))
        try:
            form = self._forms.get(key)
        except TypeError:  # a constant that has no hash
            return self._form(values)
        if form is None:
            form = self._form(values)
            if len(self._forms) < MOST_FORMS:
                self._forms[key] = form
        return form

    def _form(self, values: dict[str, Any], *, constant_ones: bool = False) -> Form:
        typed = _Typed(constant_ones)
        for index, parameter in enumerate(self._parameters):
            typed.add(parameter, (index,), values[parameter.name])
        return Form(
            typed.signature, Key(tuple(typed.key)), tuple(typed.passed), tuple(typed.places), tuple(typed.constants)
        )


def _flattened(values: Iterable[Any]) -> tuple[list[Any], list[object]]:
    """Return the values, tuples and descriptors replaced by what they hold, and what of them selects a form."""
    leaves: list[Any] = []
    kinds: list[object] = []
    for value in values:
        kinds.append(value.__class__)
        if isinstance(value, tuple):
            inner, inner_kinds = _flattened(value)
            leaves += inner
            kinds += [len(value), *inner_kinds]
        elif is_descriptor(value):
            leaves += [part for _, _, part in descriptor_arguments("", value)]
            kinds += [len(value.shape), tuple(value.block_shape)]
        else:
            leaves.append(value)
            if _is_constant(value):
                kinds.append(value if is_function(value) else text_of(value))
    return leaves, kinds


def _is_constant(value: Any) -> bool:
    """Return whether Triton makes a constant of the value of a parameter without an annotation."""
    return value is None or isinstance(value, tl.constexpr) or is_function(value)


def _is_one(value: Any, parameter: Parameter) -> bool:
    return value.__class__ is int and value == 1 and parameter.is_specialised and not parameter.annotation


class _Typed:
    """The parts of a form, collected while its parameters are typed one by one."""

    def __init__(self, constant_ones: bool) -> None:
        self._constant_ones = constant_ones
        self.signature: dict[str, Signature] = {}
        self.key: list[object] = []
        self.passed: list[tuple[str, str]] = []
        self.places: list[int] = []
        self.constants: list[Path] = []
        self._leaves = 0

    def add(self, parameter: Parameter, path: Path, value: Any) -> None:
        """Type one parameter."""
        if parameter.is_constexpr:
            self.key.append((type(value), _hashable(value)))
            self.constants.append(path)
            self.signature[parameter.name] = _CONSTANT
        else:
            self.signature[parameter.name] = self._typed(parameter, parameter.name, path, value)

    def _typed(self, parameter: Parameter, name: str, path: Path, value: Any) -> Signature:
        if isinstance(value, tuple):
            return self._tuple(name, path, value)
        if is_descriptor(value):
            return self._descriptor(parameter, name, value)
        place, self._leaves = self._leaves, self._leaves + 1
        if _is_constant(value) or (self._constant_ones and _is_one(value, parameter)):
            self.key.append((type(value), text_of(value)))
            self.constants.append(path)
            return _CONSTANT
        type_ = _argument_type(name, value, parameter)
        self.key.append(type_)
        self.passed.append((name, type_))
        self.places.append(place)
        return type_

    def _descriptor(self, parameter: Parameter, name: str, value: Any) -> str:
        """Type a tensor descriptor; the IR has its base, its sizes and its strides as arguments."""
        base = _argument_type(name, value.base, parameter)
        type_ = f"tensordesc<{base.removeprefix('*')}{list(value.block_shape)}>"
        self.key.append(type_)
        for part, part_type, _ in descriptor_arguments(name, value):
            self.passed.append((part, part_type or base))
            self.places.append(self._leaves)
            self._leaves += 1
        return type_

    def _tuple(self, name: str, path: Path, value: tuple[Any, ...]) -> Signature:
        """Type a tuple's elements; like Triton, by their values only, and as a tuple of the same class."""
        self.key.append((type(value), len(value)))
        element = Parameter(name, is_constexpr=False, annotation="", is_const=False)
        names = element_names(name, value)
        types = [self._typed(element, names[index], (*path, index), inner) for index, inner in enumerate(value)]
        return value._make(types) if hasattr(value, "_make") else tuple(types)


def element_names(name: str, value: tuple[Any, ...]) -> list[str]:
    """Return the name of each element of a tuple argument, for example `keys.stride` or `keys[1]`."""
    fields: tuple[str, ...] | None = getattr(value, "_fields", None)
    if fields is None:
        return [f"{name}[{index}]" for index in range(len(value))]
    return [f"{name}.{field}" for field in fields]


def _hashable(value: Any) -> object:
    if isinstance(value, _COMPARED_BY_TEXT):
        return text_of(value)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def _argument_type(name: str, value: Any, parameter: Parameter) -> str:
    if isinstance(value, (bool, int, float)):
        return parameter.annotation or scalar_type(value)
    if isinstance(value, torch.Tensor):
        known = TORCH_TYPES.get(value.dtype)
        if known is None:
            raise UnsupportedOperation(f"argument {name!r} of {value.dtype}", UNKNOWN_LOCATION)
        return f"{'*k' if parameter.is_const else '*'}{known[0]}"
    reinterpreted = reinterpreted_type(value)
    if reinterpreted is not None:
        return f"*{reinterpreted}"
    raise UnsupportedOperation(f"argument {name!r} of {type(value).__name__}", UNKNOWN_LOCATION)


def grid_of(grid: Any, values: dict[str, Any]) -> tuple[int, int, int]:
    """Return the three extents of a launch's grid, which is a tuple or a function of the arguments."""
    extents: Any = grid(values) if isinstance(grid, Callable) else grid  # type: ignore[arg-type]  # an abstract class
    if isinstance(extents, int):
        extents = (extents,)
    padded = [int(extent) for extent in extents] + [1, 1, 1]
    return (padded[0], padded[1], padded[2])
