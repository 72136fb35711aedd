"""Lowering: from a `@triton.jit` function and the arguments of a launch to the text of its TTIR, without a GPU.

The arguments are typed as Triton's front end types them, tensor descriptors included.

Arguments are typed as Triton types them, with two exceptions: an integer 1 is made a constant only for a kernel that
does not compile otherwise (a shape, a `static_assert`), and divisibility by 16 is not recorded. Both only let the
compiler write faster code, and would multiply the programs to lower. What Triton's compiler rejects becomes a
LoweringError, which names the line and the reason.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import operator
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from fuzz_attn.errors import LoweringError, UnsupportedOperation, WarpsAskedError
from fuzz_attn.owners import is_in_library
from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Location
from fuzz_attn.ttir.triton_compat import (
    STATED,
    STATIC_ASSERT,
    FrontEnd,
    Parameter,
    Position,
    TranslatedFunction,
    causes_of,
    compiled_at,
    defaults_of,
    is_function,
    is_interpreted,
    is_triton_error,
    name_of,
    parameters_of,
    reason_of,
    reinterpreted_type,
    source_digest,
    translating_generator,
    using_generator,
)

_LIBRARY: Final = ("language/", "runtime/", "_utils.py")
"""Parts of Triton that raise what the language does not allow, for the compiler and for the interpreter."""


class Translations:
    """The JITFunctions of InterpretedFunctions, one for each.

    With TRITON_INTERPRET set, `@triton.jit` makes InterpretedFunctions, in Triton's own library too, and the front end
    rejects them. Here each gets a JITFunction of the same Python function, which sees others as JITFunctions too.
    For each Triton looks for the function's source in its file, so that a process has one (``translations``).
    """

    def __init__(self) -> None:
        self._known: dict[Any, TranslatedFunction] = {}

    @cached_property
    def _generator(self) -> type:
        return translating_generator(self.translated)

    def translated(self, value: Any) -> Any:
        """Return the JITFunction of an InterpretedFunction; any other value as it is."""
        if not is_interpreted(value):
            return value
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = TranslatedFunction(value, self.translated)
        return known

    def accepted(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which Triton's front end takes InterpretedFunctions.

        Any kernel may call one: Triton's own library is decorated when Triton is imported, before the kernel.
        """
        return using_generator(self._generator)


@cache
def translations() -> Translations:
    """Return the translations of this process."""
    return Translations()


TORCH_TYPES: Final[dict[torch.dtype, tuple[str, str]]] = {
    torch.bool: ("i1", "i1"),
    torch.int8: ("i8", "i8"),
    torch.uint8: ("u8", "i8"),
    torch.int16: ("i16", "i16"),
    torch.uint16: ("u16", "i16"),
    torch.int32: ("i32", "i32"),
    torch.uint32: ("u32", "i32"),
    torch.int64: ("i64", "i64"),
    torch.uint64: ("u64", "i64"),
    torch.float16: ("fp16", "f16"),
    torch.bfloat16: ("bf16", "bf16"),
    torch.float32: ("fp32", "f32"),
    torch.float64: ("fp64", "f64"),
    torch.float8_e4m3fn: ("fp8e4nv", "f8E4M3FN"),
    torch.float8_e5m2: ("fp8e5", "f8E5M2"),
}
"""For each torch type its name in a kernel's signature and the element type in the IR."""

SCALAR_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "u1": np.dtype(np.bool_),
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "fp16": np.dtype(np.float32),
    "bf16": np.dtype(np.float32),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
}
"""The numpy type that holds a scalar argument."""

LOWERINGS_IN_A_CONTEXT: Final = 64
"""A context of the compiler keeps some 50 kB of each kernel. To make one takes a tenth of the time of a lowering."""


def scalar_type(value: object) -> str:
    """Return the name in a signature of a Python number, as Triton types it."""
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return "i32"
        return "i64" if value < 2**63 else "u64"
    if isinstance(value, float):
        return "fp32"
    raise UnsupportedOperation(f"argument {value!r} of {type(value).__name__}", UNKNOWN_LOCATION)


class Lowering:
    """Lowers kernels with Triton's own front end. `count` is the number of lowerings so far."""

    def __init__(self, translations: Translations, lowerings_in_a_context: int = LOWERINGS_IN_A_CONTEXT) -> None:
        self.count = 0
        self._translations = translations
        self._lowerings_in_a_context = lowerings_in_a_context
        self._front_end: FrontEnd | None = None
        self._one = threading.Lock()
        self._contexts: list[Any] = []
        weakref.finalize(self, self._contexts.clear)  # also at exit, or Triton's bindings report a leak

    def lower(self, function: Any, signature: Mapping[str, object], constants: Mapping[tuple[int, ...], Any]) -> str:
        """Return the TTIR of a JITFunction for a signature, which says "constexpr" where `constants` has a value.

        A constant is found by the number of its parameter and, within tuples, the numbers of the elements. Raises
        LoweringError with the front end's message. Threads wait for each other: Triton's compiler may abort or hang
        where two of them lower in one context.
        """
        with self._one:
            return self._lowered(function, signature, constants)

    def _lowered(self, function: Any, signature: Mapping[str, object], constants: Mapping[tuple[int, ...], Any]) -> str:
        front_end = self._front_end = self._front_end or FrontEnd()
        if self.count % self._lowerings_in_a_context == 0:
            self._contexts[:] = [front_end.new_context()]
        self.count += 1
        try:
            with self._translations.accepted():
                return front_end.ttir(function, signature, constants, self._contexts[0])
        except Exception as error:
            if isinstance(causes_of(error)[-1], WarpsAskedError):
                place = next(iter(position for cause in causes_of(error) for position in compiled_at(cause)), None)
                location = UNKNOWN_LOCATION if place is None else Location(place.file, place.line)
                raise UnsupportedOperation("the number of warps as a value of a kernel", location) from error
            raise rejected(error, function.__name__) from error


def rejected(error: BaseException, kernel: str) -> LoweringError:
    """Return the rejection of a kernel by the front end, which raised `error`."""
    causes = causes_of(error)
    positions = [position for cause in reversed(causes) for position in compiled_at(cause)]
    told = str(error)
    reason = reason_of(causes[-1])  # which a compilation error with another cause does not repeat
    words = told if reason in told else f"{reason}: {told}"
    return _rejection(f"Triton cannot lower {kernel}: {words}", name_of(causes[-1]), causes[-1], positions)


def rejection_of(error: BaseException) -> LoweringError | None:
    """Return the rejection that an exception of a launch is, None for any other exception.

    In the interpreter, only what Triton's own code raises is a rejection.
    """
    if isinstance(error, LoweringError):
        return error
    if not is_triton_error(error):
        return None
    causes = causes_of(error)
    if is_triton_error(causes[-1]) or compiled_at(causes[-1]):
        return rejected(error, "a kernel")
    frames = traceback.extract_tb(causes[-1].__traceback__)
    if not frames or not _in_library(frames[-1].filename):
        return None
    name = STATIC_ASSERT if frames[-1].name == "_new_static_assert" else name_of(causes[-1])
    return _rejection(str(error), name, causes[-1], [place for cause in reversed(causes) for place in _run_at(cause)])


def _run_at(error: BaseException) -> list[Position]:
    """Return the statements of a kernel that the interpreter was running, the innermost function first."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return [
        Position(frame.filename, frame.lineno or 0, linecache.getline(frame.filename, frame.lineno or 0).strip())
        for frame in frames
    ]


def _rejection(message: str, name: str, root: BaseException, positions: list[Position]) -> LoweringError:
    """Return a rejection at the first position that is not in Triton's library."""
    place = next((position for position in positions if not _in_library(position.file)), Position("", 0, ""))
    return LoweringError(
        message,
        error=name,
        reason=reason_of(root),
        location=f"{place.file}:{place.line}" if place.file else "",
        source=place.source,
        stated=isinstance(root, STATED),
    )


def _in_library(file: str) -> bool:
    return is_in_library(file, "triton", *_LIBRARY)


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
