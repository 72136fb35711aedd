"""IR of an unknown form ends in one error, which names the operation and the kernel's line."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
import triton
import triton.language as tl

from fuzz_attn.errors import UnsupportedOperation
from fuzz_attn.simulator.codegen.generator import Extension
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator
from fuzz_attn.ttir.ir import Location, Operation, parse_module

KERNELS = "sample_kernels.py"

MODULE = """
module {{
  tt.func public @kernel(%x_ptr: !tt.ptr<f32> loc("x_ptr"(#loc)), %n: i32 loc("n"(#loc))) {{
    %cst = arith.constant dense<1.000000e+00> : tensor<16xf32> loc(#loc1)
    %o = tt.make_range {{end = 16 : i32, start = 0 : i32}} : tensor<16xi32> loc(#loc1)
    {line} loc(#loc2)
    tt.return loc(#loc1)
  }} loc(#loc)
}} loc(#loc)
#loc = loc(unknown)
#loc1 = loc("a_kernel.py":7:1)
#loc2 = loc("a_kernel.py":9:1)
"""

UNKNOWN = [
    "%r = tt.unheard_of %cst : tensor<16xf32>",
    "%r = tt.unheard_of %cst {mode = 3 : i32} : (tensor<16xf32>) -> !tt.mystery<16>",
    "%r = new_dialect.op %n",
    "%r = arith.addf %cst, %nowhere : tensor<16xf32>",
    "%r:2 = arith.addf %cst, %cst",
    "%r = arith.constant",
    "%r = arith.constant dense<[1, 2]> : tensor<2xi32>",
    '%r = arith.constant "text"',
    "%r = arith.addi %o, %o : tensor<16xi3>",
    "%r = arith.truncf %cst : tensor<16xf32> to tensor<16xf8E3M4>",
    "%r = arith.sitofp %o : tensor<16xi32> to tensor<16xf8E3M4>",
    "%r = arith.cmpi weird, %o, %o : tensor<16xi32>",
    "%r = arith.cmpf weird, %cst, %cst : tensor<16xf32>",
    "%r = tt.get_program_id w : i32",
    "%r = tt.make_range : tensor<16xi32>",
    "%r = tt.expand_dims %o {axis = 7 : i32} : tensor<16xi32> -> tensor<16x1xi32>",
    "%r = tt.trans %o : tensor<16xi32> -> tensor<16xi32>",
    "%r = tt.splat %n : i32 -> tensor<?xi32>",
    "%r = tt.addptr %x_ptr : !tt.ptr<f32>",
    "%r = tt.load %o : tensor<16xi32>",
    "%r = tt.dot %o : tensor<16xi32>",
    "%r = tt.descriptor_load %x_ptr[%n] : !tt.tensordesc<16xf32> -> tensor<16xf32>",
    "%r = scf.for %n : i32",
    "%r = tt.call @other(%n) : (i32) -> i32",
    "%r = math.unheard_of %cst : tensor<16xf32>",
    "%r = tt.unheard_of %cst ({",
    "!!! %n",
]


USE = """%p = tt.splat %x_ptr : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>> loc(#loc1)
    %q = tt.addptr %p, %o : tensor<16x!tt.ptr<f32>>, tensor<16xi32> loc(#loc1)
    tt.store %q, %r : tensor<16x!tt.ptr<f32>> loc(#loc1)
    tt.return"""


@triton.jit
def replaced_kernel(x_ptr, n):
    tl.store(x_ptr, n)


def _run(text: str) -> None:
    """Run the kernel of a module in place of another one."""
    with simulate(Simulator(coverage=True, rewrite=lambda _: parse_module(text))):
        replaced_kernel[(2,)](torch.zeros(16), 3)


def _places(line: str) -> Iterator[Location]:
    """Yield where a line is unsupported: where it is not used, and where its result is stored."""
    module = MODULE.format(line=line)
    for text in (module, module.replace("tt.return", USE)):
        try:
            _run(text)
        except UnsupportedOperation as error:
            yield cast("Location", error.location)


@pytest.mark.parametrize("line", UNKNOWN)
def test_a_line_of_an_unknown_form_is_an_unsupported_operation_at_a_line(line: str) -> None:
    places = list(_places(line))
    assert places
    assert {place.file for place in places} == {"a_kernel.py"}
    assert {place.line for place in places} <= {7, 9}


def test_the_module_itself_is_known() -> None:
    assert not list(_places("%r = arith.addf %cst, %cst : tensor<16xf32>"))


def _broken(*_: Any) -> Any:
    raise KeyError("f4")


def test_an_error_of_generated_code_is_an_unsupported_operation_that_the_session_knows(kernels: Any) -> None:
    simulator = Simulator(extension=Extension(namespace={"reduce_ignoring_nan": _broken}))
    x = torch.ones(7, 50)
    with simulate(simulator) as session, pytest.raises(UnsupportedOperation, match=r"KeyError: 'f4'"):
        kernels.softmax_kernel[(7,)](x, 50, torch.empty(7, 50), 50, 50, BLOCK=64)
    assert len(session.unsupported) == 1


def test_an_error_of_a_handler_is_an_unsupported_operation(kernels: Any) -> None:
    def handler(_: object, operation: Operation) -> None:
        raise TypeError(f"no {operation.name}")

    simulator = Simulator(extension=Extension(handlers={"tt.load": handler}))
    x = torch.ones(40)
    with (
        simulate(simulator) as session,
        pytest.raises(UnsupportedOperation, match=r"tt\.load \(TypeError: no tt\.load\) .*sample_kernels\.py:\d+"),
    ):
        kernels.add_kernel[(2,)](x, x, x, 40, BLOCK=32)
    assert len(session.unsupported) == 1
