"""`and`, `or` and `not` in the interpreter, as the compiler takes them: of blocks, element by element.

The interpreter runs a kernel as Python, where a block counts as true: `a and b` is `b`, and `not a` is False.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, ClassVar, Final

import triton.language as tl

from fuzz_attn.ttir.interpreter_compat import SyntaxTransformer

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
