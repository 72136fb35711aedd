"""Triton's front end without its detours: the IR comes out the same, sooner.

Lowering is nearly all that the first launch of a kernel costs. What the front end does for nothing is left out here by
subclasses that stand in its module for its own while a kernel is lowered; where one does not fit, its own goes on.
Nothing stays replaced. (Its classes are not patched: Python would forget each time what it had learnt about them.)
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, cast
from unittest import mock

import triton
from triton.compiler import code_generator
from triton.language import constexpr
from triton.runtime.jit import JITFunction

from .interpreted import compiled

_LOCATIONS_COME_BACK: Final = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 8)
"""Whether an operation has the location of its own expression; before, it had that of the operand visited last."""

_TREES: dict[str, ast.Module] = {}
"""Syntax trees of functions by their source."""


@contextlib.contextmanager
def functions_parsed_once() -> Iterator[None]:
    """Let Triton take a function's syntax tree from the last time, as it never changes it.

    By itself the front end parses the source of a device function again for each call with other types or constants,
    which was a fifth of its time.
    """
    original = JITFunction.parse

    def parse(self: Any) -> ast.Module:
        tree = _TREES.get(self.src)
        if tree is None:
            tree = _TREES[self.src] = original(self)
        return tree

    with mock.patch.object(JITFunction, "parse", parse):
        yield


@contextlib.contextmanager
def quick_front_end() -> Iterator[None]:
    """Replace what this module improves; InterpretedFunctions then count as JITFunctions."""
    with (
        functions_parsed_once(),
        mock.patch.multiple(code_generator, CodeGenerator=_Generator, ASTFunction=_Prototype),
    ):
        yield


class _StaticFunctions(dict[object, Callable[..., Any]]):
    """What the front end calls instead of lowering a call, by function.

    A JITFunction is never among them, and its hash is that of the sources of all that it may call.
    """

    def get(self, key: object, default: Any = None) -> Any:
        return default if isinstance(key, JITFunction) else super().get(key, default)


class _Generator(code_generator.CodeGenerator):  # type: ignore[misc]  # Triton has no types
    """The front end's walk over a function's syntax tree."""

    statically_implemented_functions: Final = _StaticFunctions(
        code_generator.CodeGenerator.statically_implemented_functions
    )

    def visit(self, node: ast.AST | None) -> Any:
        """Return what a node stands for, without a source location where no operation can come of it.

        Inside an assignment, the value's own location names that of the statement, so it is set as ever.
        """
        kind = node.__class__ if _LOCATIONS_COME_BACK else None
        if kind is ast.Name:
            name = cast("ast.Name", node)
            if self._location_stays():
                if name.ctx.__class__ is ast.Store:
                    return name.id
                try:
                    return self.dereference_name(name.id)
                except Exception:  # noqa: BLE001, S110 - raised again below, with the source around it
                    pass
        elif kind is ast.Constant:
            if self._location_stays():
                return constexpr(cast("ast.Constant", node).value)
        elif kind is ast.arg and cast("ast.arg", node).annotation is None:
            return cast("ast.arg", node).arg
        return super().visit(node)

    def _location_stays(self) -> bool:
        return self.name_loc_as_prefix is None or isinstance(self.cur_node, ast.expr)

    def call_Function(  # noqa: N802 - Triton's name
        self, node: ast.AST, function: Any, arguments: list[Any], keywords: dict[str, Any]
    ) -> Any:
        """Return the value of a call."""
        return super().call_Function(node, compiled(function), [compiled(one) for one in arguments], keywords)


class _Prototype(code_generator.ASTFunction):  # type: ignore[misc]  # as above
    """A function's types."""

    def deserialize(self, function: Any) -> Any:
        """Return the function's parameters as values; Triton's own way takes the square of their number."""
        if self.attrs or hasattr(self, "constants"):  # constants: Triton 3.6
            return super().deserialize(function)
        handles = [function.args(index) for index in range(function.get_num_args())]
        values, cursor = [], 0
        for type_ in self.arg_types:
            value, cursor = type_._unflatten_ir(handles, cursor)
            values.append(value)
        return values
