"""Lowering: from a `@triton.jit` function and the types of its arguments to the text of its TTIR, without a GPU.

Arguments are typed as Triton types them, with two exceptions: an integer 1 is made a constant only for a kernel that
does not compile otherwise (a shape, a `static_assert`), and divisibility by 16 is not recorded. Both only let the
compiler write faster code, and would multiply the programs to lower. What Triton's compiler rejects becomes a
LoweringError, which names the line and the reason.
"""

from __future__ import annotations

import contextlib
import linecache
import threading
import traceback
import weakref
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
import torch

from fuzz_attn.errors import LoweringError, UnsupportedOperation, WarpsAskedError
from fuzz_attn.owners import is_in_library
from fuzz_attn.ttir.ir import UNKNOWN_LOCATION, Location
from fuzz_attn.ttir.triton_compat import (
    STATED,
    STATIC_ASSERT,
    FrontEnd,
    Position,
    TranslatedFunction,
    causes_of,
    compiled_at,
    is_interpreted,
    is_triton_error,
    name_of,
    reason_of,
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
