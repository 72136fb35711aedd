"""Shims: named fixes for defects of Triton's interpreter, applied only if the preflight finds the defect.

Up to and including Triton 3.9.0 the interpreter keeps bfloat16 as bit patterns and computes on these (Triton #11584),
truncates float32 to bfloat16 instead of rounding it, uses the bits of an integer as those of its bfloat16, loses the
carry when it rounds to fp8, takes `a and b` of two blocks for `b`, and refuses a mask that is a block's condition `&` a
scalar's. Nothing stays patched outside of the context.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar, Final

import ml_dtypes
import numpy as np
import triton.language as tl

from fuzz_attn.case.parts import DTYPES, FP8_DTYPES
from fuzz_attn.inputs.storage import NUMPY_DTYPES
from fuzz_attn.ttir.interpreter_compat import (
    LANGUAGE,
    InterpreterBuilder,
    SyntaxTransformer,
    TensorHandle,
    arithmetic_replaced,
    float_conversion,
    float_conversion_replaced,
    language_patched_once,
    syntax_replaced,
)

_METHODS: Final[dict[type[ast.boolop], str]] = {ast.And: "logical_and", ast.Or: "logical_or"}
_COMBINED: Final = "_fuzz_attn_combined"
_NEGATED: Final = "_fuzz_attn_negated"


class BooleanOperators(SyntaxTransformer):  # type: ignore[misc]  # Triton has no types
    """Replaces the operators by calls. One that names a value (`:=`) stays, since a call would hide the name.

    `functions` are those that were changed, as Triton keeps its own.
    """

    functions: ClassVar[dict[Any, Any]] = {}

    def visit_Assign(self, node: ast.Assign) -> Any:  # noqa: N802 - Python's name
        """Replace in the value too, which Triton 3.6 does not visit."""
        node.value = self.visit(node.value)
        return super().visit_Assign(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:  # noqa: N802 - Python's name
        """Return a call with a function for each operand, of which the compiler too may leave out some."""
        self.generic_visit(node)
        if any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node)):
            return node
        return _call(_COMBINED, ast.Constant(_METHODS[type(node.op)]), *map(_function, node.values))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:  # noqa: N802 - Python's name
        """Return a call in place of `not`."""
        self.generic_visit(node)
        return _call(_NEGATED, node.operand) if isinstance(node.op, ast.Not) else node


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _function(body: ast.expr) -> ast.expr:
    return ast.Lambda(ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]), body)


def _combined(method: str, *operands: Callable[[], Any]) -> Any:
    """Return what `and` or `or` gives; only a constant ends it early."""
    decisive = method == "logical_or"
    tensors = []
    value: Any = None
    for operand in operands:
        value = operand()
        if isinstance(value, tl.tensor):
            tensors.append(value)
        elif bool(value) is decisive:
            return value
    if not tensors:
        return value
    result = tensors.pop()
    while tensors:
        result = getattr(tensors.pop(), method)(result)
    return result


def _negated(value: Any) -> Any:
    """Return what `not` gives."""
    if isinstance(value, tl.tensor) and value.type.is_block():
        return value == 0
    return not value


NAMES: Final[dict[str, Callable[..., Any]]] = {_COMBINED: _combined, _NEGATED: _negated}
"""What the calls call."""


_NUMPY_DTYPES: Final = {DTYPES[name].triton: dtype for name, dtype in NUMPY_DTYPES.items()}
_LARGEST: Final = {DTYPES[name].triton: np.float32(DTYPES[name].largest) for name in FP8_DTYPES}

Operation = Callable[..., Any]


def needed(defects: tuple[str, ...]) -> tuple[str, ...]:
    """Return the shims that fix the preflight's findings; a finding that none fixes is ignored."""
    return tuple(name for name, fixes in _FIXES.items() if any(fixes(defect) for defect in defects))


_FIXES: Final[dict[str, Callable[[str], bool]]] = {
    "interpreter_float_casts": lambda defect: defect.startswith("cast:"),
    "interpreter_bfloat16_arithmetic": lambda defect: defect in ("add:bfloat16", "dot:bfloat16"),
    "interpreter_boolean_operators": lambda defect: defect.startswith("operator:"),
    "interpreter_scalar_conditions": lambda defect: defect.startswith("mask:"),
}


@contextmanager
def applied(names: tuple[str, ...]) -> Iterator[None]:
    """Apply the named shims to the interpreter while the context lasts."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(_SHIMS[name]())
        yield


@contextmanager
def _float_casts() -> Iterator[None]:
    """Let casts round to nearest even, and saturate to fp8, as the conversion instructions of GPUs do.

    Integers are cast to bfloat16 through float32.
    """
    original = float_conversion()

    def convert(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if str(source) not in _NUMPY_DTYPES or str(target) not in _NUMPY_DTYPES:
            return original(data, source, target, rounding_mode)
        wide = np.ascontiguousarray(data).view(_NUMPY_DTYPES[str(source)]).astype(np.float32)
        if str(target) in _LARGEST:
            wide = np.clip(wide, -_LARGEST[str(target)], _LARGEST[str(target)])
        narrow = wide.astype(_NUMPY_DTYPES[str(target)])
        return narrow.view(np.dtype(f"u{narrow.dtype.itemsize}"))

    original_cast = InterpreterBuilder.cast_impl

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if target.scalar == tl.bfloat16 and source.dtype.scalar.is_int():
            return _narrowed(source.data.astype(np.float32))
        return original_cast(self, source, target)

    with float_conversion_replaced(convert), arithmetic_replaced(cast_impl=cast_impl):
        yield


@contextmanager
def _bfloat16_arithmetic() -> Iterator[None]:
    """Compute on bfloat16 operands in float32, and round each result to bfloat16 once."""
    builder = InterpreterBuilder
    binary, unary, dot = builder.binary_op, builder.unary_op, builder.create_dot

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Operation) -> Any:
        if not _is_bfloat16(lhs):
            return binary(self, lhs, rhs, op)
        return _narrowed(op(_widened(lhs).data, _widened(rhs).data))

    def unary_op(self: Any, arg: Any, op: Operation) -> Any:
        if not _is_bfloat16(arg):
            return unary(self, arg, op)
        return _narrowed(op(_widened(arg).data))

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, _widened(a), _widened(b), *rest)

    with arithmetic_replaced(binary_op=binary_op, unary_op=unary_op, create_dot=create_dot):
        yield


def _boolean_operators() -> AbstractContextManager[None]:
    """Let `and`, `or` and `not` of blocks work on each element."""
    return syntax_replaced(BooleanOperators(), BooleanOperators.functions, NAMES)


@contextmanager
def _scalar_conditions() -> Iterator[None]:
    """Keep a scalar's condition a truth value where it becomes a block, not a number of the type that was compared."""
    splat = InterpreterBuilder.create_splat

    def create_splat(self: Any, block: Any, scalar: Any) -> Any:
        if scalar.data.dtype == np.bool_:
            return TensorHandle(np.full(block.shape, scalar.data), tl.int1)
        return splat(self, block, scalar)

    with arithmetic_replaced(create_splat=create_splat):
        yield


def _is_bfloat16(handle: Any) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16)


def _widened(handle: Any) -> Any:
    """Return a bfloat16 handle widened to float32; any other unchanged."""
    if not _is_bfloat16(handle):
        return handle
    bits = np.ascontiguousarray(handle.data).astype(np.uint32) << np.uint32(16)
    return TensorHandle(bits.view(np.float32), tl.float32)


def _narrowed(result: Any) -> Any:
    """Return a result of float32 arithmetic rounded to bfloat16; truth values unchanged."""
    if result.dtype == np.bool_:
        return TensorHandle(result, tl.int1)
    return TensorHandle(result.astype(ml_dtypes.bfloat16).view(np.uint16), tl.bfloat16)


_SHIMS: Final = {
    "interpreter_float_casts": _float_casts,
    "interpreter_bfloat16_arithmetic": _bfloat16_arithmetic,
    "interpreter_boolean_operators": _boolean_operators,
    "interpreter_scalar_conditions": _scalar_conditions,
}


@contextmanager
def contained() -> Iterator[None]:
    """Restore Triton's language when the context is left.

    The interpreter patches it for each launch, and again for each device function in another module, such as
    ``tl.max``, and undoes only the former. Without this, the process could not compile or lower anything afterwards.
    """
    before = [(namespace, dict(vars(namespace))) for namespace in LANGUAGE]
    try:
        yield
    finally:
        for namespace, attributes in before:
            _restore(namespace, attributes)


def _restore(namespace: Any, attributes: dict[str, Any]) -> None:
    now = dict(vars(namespace))
    for name in now.keys() - attributes.keys():
        delattr(namespace, name)
    for name, value in attributes.items():
        if now.get(name) is not value:
            setattr(namespace, name, value)


@contextmanager
def quick_device_calls() -> Iterator[None]:
    """Let the interpreter patch Triton's language once for each launch, and restore it at the end."""
    with contained(), language_patched_once():
        yield
