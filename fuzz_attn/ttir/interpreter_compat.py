"""Everything of Triton's interpreter that its documentation does not promise. Seen to work with Triton 3.6 to 3.9.

`tests/ttir/test_triton_compat.py` has a canary for each.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest import mock

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction

InterpreterBuilder: Final = interpreter.InterpreterBuilder
"""Its methods `cast_impl`, `binary_op`, `unary_op`, `create_splat` and `create_dot` do the interpreter's arithmetic."""

TensorHandle: Final = interpreter.TensorHandle
"""A value of the interpreter: numpy `data` of a Triton `dtype`."""

InterpreterError: Final = interpreter.InterpreterError
"""What the interpreter raises for an error in a kernel or in its own code."""

SyntaxTransformer: Final = interpreter.ASTTransformer
"""Changes the syntax tree of each function that the interpreter runs."""

LANGUAGE: Final[tuple[Any, ...]] = (
    *(tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.core.condition),
    tl.core.tensor_descriptor_base,
)
"""The modules and classes that the interpreter patches for a launch."""


def float_conversion() -> Callable[..., Any]:
    """Return the interpreter's function that converts floats, from (data, source, target, rounding mode)."""
    function: Callable[..., Any] = interpreter._convert_float
    return function


@contextlib.contextmanager
def float_conversion_replaced(convert: Callable[..., Any]) -> Iterator[None]:
    """Let the interpreter convert floats with `convert`, until the context is left."""
    with mock.patch.object(interpreter, "_convert_float", convert):
        yield


@contextlib.contextmanager
def arithmetic_replaced(**methods: Callable[..., Any]) -> Iterator[None]:
    """Give the interpreter's builder these methods, until the context is left."""
    with contextlib.ExitStack() as stack:
        for name, method in methods.items():
            stack.enter_context(mock.patch.object(InterpreterBuilder, name, method))
        yield


@contextlib.contextmanager
def language_patched_once() -> Iterator[None]:
    """Let a jit function that a kernel calls use the patches of Triton's language that the kernel's launch has made.

    The interpreter makes them anew at every call of a device function, which is half of its time. No result changes.
    """
    original = interpreter._patch_lang
    patched: set[int] = set()

    def patch(fn: Any) -> Any:
        languages = {id(value) for value in fn.__globals__.values() if value is tl or value is tl.core}
        if languages and languages <= patched:
            return interpreter._LangPatchScope()
        scope = original(fn)
        patched.update(languages)
        restore = scope.restore

        def restored() -> None:
            restore()
            patched.clear()

        scope.restore = restored
        return scope

    with mock.patch.object(interpreter, "_patch_lang", patch):
        yield


@contextlib.contextmanager
def syntax_replaced(
    transformer: ast.NodeTransformer, functions: dict[Any, Any], names: Mapping[str, Callable[..., Any]]
) -> Iterator[None]:
    """Let the interpreter change each function's syntax tree with `transformer`, until the context is left.

    `functions` keeps the changed functions, which may use the `names`.
    """
    places: list[tuple[Any, str, Any]] = [(interpreter, name, function) for name, function in names.items()]
    places.append((interpreter.FunctionRewriter, "ast_transformer", transformer))
    places.append((InterpretedFunction, "rewritten_fn", functions))
    with contextlib.ExitStack() as stack:
        for owner, name, value in places:
            stack.enter_context(mock.patch.object(owner, name, value, create=owner is interpreter))
        yield
