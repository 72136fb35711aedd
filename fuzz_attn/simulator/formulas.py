"""Formulas: operations of the IR computed by numpy on arrays that hold a row for each program, and as text of source.

They tell how a launch would go with another formula at one place of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fuzz_attn.simulator.runtime.float_formats import CONTAINER
from fuzz_attn.ttir.ir import Operation, Type, Value, parse_literal

Array: TypeAlias = npt.NDArray[Any]
Read: TypeAlias = Callable[[Value], Array]
"""Returns a value with the axis of programs in front, which may have one element, as may each axis of a tile."""


def _quotient(left: Array, right: Array) -> Array:
    safe = np.where(right == 0, right.dtype.type(1), right)
    whole = np.abs(left) // np.abs(safe)
    result: Array = np.where((left < 0) != (safe < 0), -whole, whole).astype(left.dtype)
    return result


def _remainder(left: Array, right: Array) -> Array:
    result: Array = left - _quotient(left, right) * np.where(right == 0, right.dtype.type(1), right)
    return result


BINARY: Final[Mapping[str, tuple[str, Callable[[Array, Array], Array]]]] = {
    "arith.addi": ("+", np.add),
    "arith.subi": ("-", np.subtract),
    "arith.muli": ("*", np.multiply),
    "arith.divsi": ("//", _quotient),
    "arith.remsi": ("%", _remainder),
    "arith.andi": ("&", np.bitwise_and),
    "arith.ori": ("|", np.bitwise_or),
    "arith.xori": ("^", np.bitwise_xor),
    "arith.minsi": ("min", np.minimum),
    "arith.maxsi": ("max", np.maximum),
    "arith.addf": ("+", np.add),
    "arith.subf": ("-", np.subtract),
    "arith.mulf": ("*", np.multiply),
    "arith.divf": ("/", np.divide),
    "arith.maxnumf": ("max", np.fmax),
    "arith.minnumf": ("min", np.fmin),
    "arith.maximumf": ("max", np.maximum),
    "arith.minimumf": ("min", np.minimum),
}
"""For each operation of two operands its sign in the source, or its name as a function, and what computes it."""

UNARY: Final[Mapping[str, tuple[str, Callable[[Array], Array]]]] = {
    "math.exp": ("exp", np.exp),
    "math.exp2": ("exp2", np.exp2),
    "math.log": ("log", np.log),
    "math.log2": ("log2", np.log2),
    "math.sqrt": ("sqrt", np.sqrt),
    "math.absf": ("abs", np.abs),
    "math.absi": ("abs", np.abs),
    "arith.negf": ("-", np.negative),
}

PREDICATES: Final[Mapping[str, tuple[str, Callable[[Array, Array], Array]]]] = {
    "lt": ("<", np.less),
    "le": ("<=", np.less_equal),
    "gt": (">", np.greater),
    "ge": (">=", np.greater_equal),
    "eq": ("==", np.equal),
    "ne": ("!=", np.not_equal),
}
CASTS: Final = frozenset({"arith.extsi", "arith.trunci", "arith.sitofp", "arith.fptosi", "arith.extf", "arith.truncf"})
_OF_THREE: Final = frozenset({"arith.select", "tt.clampf"})
WIDENING: Final = frozenset({"arith.extsi", "arith.extf"})
SHAPES: Final = frozenset({"tt.splat", "tt.broadcast", "tt.expand_dims"})
"""Operations that only give a value more axes."""


def predicate_of(operation: Operation) -> str:
    """Return the predicate of a comparison without what says how it compares."""
    if not operation.name.startswith("arith.cmp"):
        return ""
    keyword = operation.attributes.keyword
    return keyword if keyword in ("eq", "ne") else keyword[1:]


def reshaped(operation: Operation, array: Array) -> Array:
    """Return the result of an operation of `SHAPES`; a broadcast axis keeps its one element."""
    rank = len(operation.results[0].type.shape)
    if operation.name == "tt.splat":
        return array.reshape((-1,) + (1,) * rank)
    if operation.name == "tt.expand_dims":
        return np.expand_dims(array, operation.attributes.integer("axis") + 1)
    return array


def ranked(array: Array, rank: int) -> Array:
    """Return an array of the same elements with the axis of programs and those of a tile of a rank."""
    missing = rank + 1 - array.ndim
    return array.reshape(array.shape + (1,) * missing) if missing > 0 else array


def computed(operation: Operation, arrays: list[Array]) -> Array | None:
    """Return the result of an operation on arrays; None for one that is not known here."""
    name = operation.name
    if name in BINARY:
        return BINARY[name][1](arrays[0], arrays[1])
    if name in UNARY:
        return UNARY[name][1](arrays[0])
    if name in ("arith.cmpi", "arith.cmpf") and predicate_of(operation) in PREDICATES:
        return PREDICATES[predicate_of(operation)][1](arrays[0], arrays[1])
    if name in _OF_THREE:
        return np.where(*arrays) if name == "arith.select" else _limited(operation, *arrays)
    if name in CASTS and operation.results[0].type.element in ("i32", "i64", "f32", "i8", "i16"):
        return arrays[0].astype(CONTAINER[operation.results[0].type.element])
    return reshaped(operation, arrays[0]) if name in SHAPES else None


def _limited(operation: Operation, value: Array, low: Array, high: Array) -> Array:
    keeps_nan = operation.attributes.named.get("propagateNan") == "all"
    smaller, larger = (np.minimum, np.maximum) if keeps_nan else (np.fmin, np.fmax)
    result: Array = smaller(larger(value, low), high)
    return result


def is_known(operation: Operation) -> bool:
    """Return whether :func:`computed` knows an operation."""
    name = operation.name
    if name.startswith("arith.cmp"):
        return predicate_of(operation) in PREDICATES
    if name in CASTS:
        return operation.results[0].type.element in ("i32", "i64", "f32", "i8", "i16")
    return name in BINARY or name in UNARY or name in SHAPES or name in _OF_THREE


def number_of(operation: Operation | None) -> float | int | bool | None:
    """Return the number of a constant; None for any other operation."""
    if operation is None or operation.name != "arith.constant":
        return None
    return parse_literal(operation.attributes.constant, operation.results[0].type.element)


def kind_of(type_: Type) -> str:
    """Return what a value may stand for another one by: ``int``, its own element, or nothing for a pointer."""
    if type_.pointer:
        return ""
    return "int" if type_.element in ("i32", "i64") else type_.element


_SUFFIX: Final = re.compile(r"^%([A-Za-z_][\w.]*?)(?:_\d+)?(?:#\d+)?$")
_NAMELESS: Final = re.compile(r"^(?:cst|c-?\d+_i\d+|true|false|arg\d+)$")


def variable_of(value: Value) -> str:
    """Return the name that the source gives a value, or one that it is a part of; empty where there is none."""
    found = _SUFFIX.match(value.name)
    return "" if found is None or _NAMELESS.match(found[1]) else found[1]


def in_words(operation: Operation, operands: list[str]) -> str:
    """Return an operation on operands in words as the source would write it."""
    name = operation.name
    if name.startswith("arith.cmp"):
        sign = PREDICATES.get(predicate_of(operation), (predicate_of(operation),))[0]
        return f"{_inner(operands[0])} {sign} {_inner(operands[1])}"
    if name in BINARY:
        return binary_in_words(BINARY[name][0], *operands)
    if name in UNARY:
        return f"{UNARY[name][0]}({operands[0]})"
    if name in CASTS or name in SHAPES:
        return operands[0]
    if name == "arith.select":
        return f"where({', '.join(operands)})"
    short = name.partition(".")[2]
    words = {"reduce": "sum", "get_program_id": "program_id", "clampf": "clamp"}.get(short, short)
    return f"{words}({', '.join(operands)})"


def binary_in_words(sign: str, left: str, right: str) -> str:
    """Return an operation of two operands in words."""
    if sign.isalpha():
        return f"{sign}imum({left}, {right})"
    return f"{_inner(left)} {sign} {_inner(right)}"


def _inner(words: str) -> str:
    """Return an operand in parentheses where it needs them."""
    depth = 0
    for character in words:
        depth += (character in "([") - (character in ")]")
        if character == " " and not depth:
            return f"({words})"
    return words
