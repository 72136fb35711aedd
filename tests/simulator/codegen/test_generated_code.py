"""The generated code: its text, what is removed from it, what it may call, and what its errors say."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuzz_attn.errors import LoopLimitError, UnsupportedOperation
from fuzz_attn.simulator.codegen.emitter import Emitter
from fuzz_attn.simulator.codegen.generator import Extension, generate
from fuzz_attn.simulator.codegen.program import NAMESPACE
from fuzz_attn.simulator.codegen.source_tree import (
    NONE,
    Assign,
    Attribute,
    Binary,
    Conditional,
    Do,
    Expression,
    Group,
    If,
    Name,
    Pruner,
    Statement,
    Unary,
    call,
    constant,
    index,
    method,
    number,
    printed,
)
from fuzz_attn.simulator.codegen.terms import KnownRange, Region, Scope, known
from fuzz_attn.simulator.runtime import ranges
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator
from fuzz_attn.ttir.ir import parse_module
from fuzz_attn.ttir.lowering import Lowering, Translations

KERNELS = "operation_kernels.py"
A, B, C = Name("a"), Name("b"), Name("c")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (Binary("*", Binary("+", A, B), C), "(a + b) * c"),
        (Binary("+", A, Binary("*", B, C)), "a + b * c"),
        (Binary("-", A, Binary("-", B, C)), "a - (b - c)"),
        (Binary("-", Binary("-", A, B), C), "a - b - c"),
        (Unary("~", Binary("<=", A, B)), "~(a <= b)"),
        (Binary("==", Binary("<", A, B), C), "(a < b) == c"),
        (Binary("|", Binary("<", A, B), Binary(">", A, B)), "(a < b) | (a > b)"),
        (Unary("-", method(A, "astype", B)), "-a.astype(b)"),
        (Attribute(Unary("-", A), "size"), "(-a).size"),
        (index(Binary("+", A, B), constant(0)), "(a + b)[0]"),
        (Conditional(A, Binary("is", B, NONE), Conditional(C, A, B)), "a if b is None else c if a else b"),
        (Binary("+", Conditional(A, B, C), A), "(a if b else c) + a"),
        (Binary("-", A, number(-1)), "a - (-1)"),
        (call("f", number(float("-inf")), number(-0.0)), "f((-inf), (-0.0))"),
        (Group((A,)), "(a,)"),
    ],
)
def test_an_expression_has_just_the_parentheses_that_it_needs(expression: Expression, text: str) -> None:
    assert expression.text == text


def test_numbers_that_python_calls_equal_stay_apart() -> None:
    assert len({number(0.0), number(-0.0), number(0), number(False)}) == 4


def _statements() -> list[Statement]:
    return [
        Assign(Name("kept"), call("load")),
        Assign(Name("first"), call("f", Name("kept"))),
        Assign(Name("second"), call("g", Name("first"))),
        Assign(Name("loaded"), call("report"), effect=True),
        If(Name("kept"), [Assign(Name("unread"), Name("kept"))], [Do(call("store", Name("kept")))]),
    ]


def test_what_nothing_reads_is_removed_with_all_that_only_it_reads() -> None:
    kept = Pruner().pruned(_statements())
    assert [text for text, _ in printed(kept)] == [
        "kept = load()",
        "loaded = report()",
        "if kept:",
        "    pass",
        "else:",
        "    store(kept)",
    ]


def test_the_variables_that_one_part_hands_to_the_next() -> None:
    before: list[Statement] = _statements()[:3]
    after: list[Statement] = [Do(call("store", Name("second"), Name("kept"), Name("second")))]
    pruner = Pruner()
    pruner.pruned(after)
    assert pruner.read_later(before) == ["kept", "second"]


def test_ranges_that_are_known_are_computed_when_code_is_generated() -> None:
    product = known(ranges.multiply, [KnownRange(0, 7), KnownRange(2**29, 2**29)])
    assert product == KnownRange(0, 7 * 2**29)
    assert not product.fits_32_bits
    assert KnownRange(0, 7).fits_32_bits


def _program_text(kernels: Any, kernel: str, signature: dict[str, str], constants: dict[str, Any]) -> str:
    positions: dict[tuple[int, ...], Any] = {(list(signature).index(name),): value for name, value in constants.items()}
    translated = Translations().translated(getattr(kernels, kernel))
    text = Lowering(Translations()).lower(translated, signature | dict.fromkeys(constants, "constexpr"), positions)
    return generate(parse_module(text), coverage=True).source


_DOT = {"a_ptr": "*fp32", "b_ptr": "*fp32", "out_ptr": "*fp32", "M": "", "N": "", "K": "", "PRECISION": ""}
_CONTROL = {"out_ptr": "*i32", "limits_ptr": "*i32", "OPERATION": ""}


@pytest.mark.parametrize(
    ("kernel", "signature", "constants"),
    [
        ("dot_kernel", _DOT, {"M": 16, "N": 16, "K": 16, "PRECISION": "ieee"}),
        ("control_kernel", _CONTROL, {"OPERATION": "nested"}),
        ("control_kernel", _CONTROL, {"OPERATION": "pointer_while"}),
        ("control_kernel", _CONTROL, {"OPERATION": "return_in_branch"}),
    ],
)
def test_generated_code_calls_only_what_the_table_holds(
    kernels: Any, kernel: str, signature: dict[str, str], constants: dict[str, Any]
) -> None:
    tree = ast.parse(_program_text(kernels, kernel, signature, constants))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    given = {"seen", "slots", *vars(builtins), *NAMESPACE}
    assert {node.id for node in names} - assigned - defined - parameters <= given


def _line_of(kernel: Any, text: str) -> str:
    """Return file and line of the first line of a kernel that contains a text."""
    source, start = inspect.getsourcelines(kernel.fn)
    offset = next(number for number, line in enumerate(source) if text in line)
    return f"{Path(inspect.getfile(kernel.fn)).name}:{start + offset}"


def _broken(*tiles: Any) -> Any:
    raise ValueError("this is broken")


def test_an_error_in_generated_code_names_the_operation_and_the_kernels_line(kernels: Any) -> None:
    tiles = [torch.ones(16, 16) for _ in range(3)]
    simulator = Simulator(extension=Extension(namespace={"dot": _broken}))
    expected = r"tt\.dot \(ValueError: this is broken\) is not supported, at .*operation_kernels\.py:"
    with simulate(simulator), pytest.raises(UnsupportedOperation, match=expected) as caught:
        kernels.dot_kernel[(1,)](*tiles, M=16, N=16, K=16, PRECISION="ieee")
    assert caught.value.__cause__ is not None
    (note,) = caught.value.__cause__.__notes__
    line = re.escape(_line_of(kernels.dot_kernel, "tl.dot("))
    assert re.fullmatch(
        rf"while running tt\.dot at .*{line} \(generated line \d+: v\d+ = dot\(v\d+, v\d+, .*\)\)", note
    )


def test_an_endless_loop_names_the_loop_and_its_line(kernels: Any) -> None:
    limits = torch.tensor([2**31 - 1], dtype=torch.int32)
    with simulate(), pytest.raises(LoopLimitError) as caught:
        kernels.control_kernel[(1,)](torch.zeros(1, dtype=torch.int32), limits, OPERATION="while")
    (note,) = caught.value.__notes__
    assert "while running scf.while at " in note
    assert "check_iterations(" in note


def test_a_program_from_the_disk_names_its_lines_too(kernels: Any, tmp_path: Path) -> None:
    limits = torch.tensor([2**31 - 1], dtype=torch.int32)
    notes = set()
    for _ in range(2):
        with simulate(Simulator(cache_dir=tmp_path)), pytest.raises(LoopLimitError) as caught:
            kernels.control_kernel[(1,)](torch.zeros(1, dtype=torch.int32), limits, OPERATION="for")
        notes.update(caught.value.__notes__)
    (note,) = notes
    assert _line_of(kernels.control_kernel, "for i in range(0, limit):") in note


def test_an_extension_changes_only_its_own_simulator(kernels: Any) -> None:
    seen: list[Any] = []

    def dot(left: Any, right: Any, addend: Any) -> Any:
        seen.append(addend)
        return np.matmul(left, right)

    tiles = [torch.full((16, 16), 2.0), torch.ones(16, 16), torch.zeros(16, 16)]
    with simulate(Simulator(extension=Extension(namespace={"dot": dot}))):
        kernels.dot_kernel[(1,)](*tiles, M=16, N=16, K=16, PRECISION="ieee")
    assert len(seen) == 1
    assert torch.equal(tiles[2], torch.full((16, 16), 32.0))
    with simulate(Simulator()):
        kernels.dot_kernel[(1,)](*tiles, M=16, N=16, K=16, PRECISION="ieee")
    assert len(seen) == 1


def test_an_error_inside_of_a_region_leaves_the_region() -> None:
    emitter = Emitter({}, set(), coverage=False)
    outer = emitter.region
    with pytest.raises(ZeroDivisionError), emitter.inside(Region(None, Scope(None, Name("lanes")))):
        raise ZeroDivisionError
    assert emitter.region is outer
