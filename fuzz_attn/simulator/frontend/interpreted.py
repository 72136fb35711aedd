"""Kernels that were decorated while TRITON_INTERPRET was set, as functions that the compiler's front end takes.

Setting that variable turns every `@triton.jit` function, Triton's own library included, into an InterpretedFunction, at
which the front end stops. Here each gets a JITFunction of the same Python function, in whose globals others are found
as JITFunctions too.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
from typing import Any
from unittest import mock

from triton.compiler import code_generator
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction


class Compiled(JITFunction):  # type: ignore[misc]  # Triton has no types
    """A JITFunction made of an InterpretedFunction's Python function."""

    hash: str | None

    def get_capture_scope(self) -> dict[str, Any]:
        """Return the names that the function sees, with JITFunctions for InterpretedFunctions."""
        return {name: compiled(value) for name, value in super().get_capture_scope().items()}

    @property
    def cache_key(self) -> str:
        """A digest of the function and of all that it calls; Triton resets `hash` when the source changes."""
        if self.hash is None:
            self.hash = hashlib.sha256((self.src + _digest(self.fn)).encode()).hexdigest()
        return self.hash

    def __hash__(self) -> int:
        return id(self)


_KNOWN: dict[int, tuple[Any, Any]] = {}


def compiled(value: Any) -> Any:
    """Return the JITFunction of an InterpretedFunction, always the same one; any other value as it is."""
    if not isinstance(value, InterpretedFunction):
        return value
    known = _KNOWN.get(id(value))
    if known is None:
        noinline = getattr(value, "kwargs", {}).get("noinline")
        known = _KNOWN[id(value)] = (value, Compiled(value.fn, noinline=noinline))
    return known[1]


class _Generator(code_generator.CodeGenerator):  # type: ignore[misc]  # Triton has no types
    """The front end's walk over a function's syntax tree, with JITFunctions for InterpretedFunctions."""

    def call_Function(  # noqa: N802 - Triton's name
        self, node: ast.AST, function: Any, arguments: list[Any], keywords: dict[str, Any]
    ) -> Any:
        """Return the value of a call, also of a function that is found as an attribute of a module."""
        return super().call_Function(node, compiled(function), [compiled(one) for one in arguments], keywords)


def interpreted_functions_accepted() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which Triton's front end takes InterpretedFunctions.

    A kernel that is a JITFunction may call one too: Triton's own library is decorated when Triton is imported.
    """
    return mock.patch.object(code_generator, "CodeGenerator", _Generator)


def _digest(function: Any) -> str:
    """Return a digest of a function's source and of all that it refers to by name."""
    seen: dict[str, str] = {}
    pending = [function]
    while pending:
        current = pending.pop()
        name = f"{current.__module__}.{current.__qualname__}:{current.__code__.co_firstlineno}"
        if name in seen:
            continue
        seen[name] = inspect.getsource(current)
        for used in current.__code__.co_names:
            value = current.__globals__.get(used)
            if isinstance(value, InterpretedFunction):
                pending.append(value.fn)
            elif isinstance(value, (int, float, str)) or hasattr(value, "value"):
                seen[f"{name}.{used}"] = repr(value)
    return hashlib.sha256(repr(sorted(seen.items())).encode()).hexdigest()
