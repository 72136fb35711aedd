"""Every launch of Triton runs in the simulator, and nothing stays patched."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from fuzz_attn.denormals import flushes_denormals
from fuzz_attn.errors import LoweringError, SimulatorError, UnsupportedOperation
from fuzz_attn.simulator.access_checks import FindingKind
from fuzz_attn.simulator.session import simulate

KERNELS = "sample_kernels.py"


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})], key=["num_elements"])
@triton.jit
def tuned_kernel(x_ptr, y_ptr, out_ptr, num_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.heuristics({"BLOCK": lambda arguments: triton.next_power_of_2(arguments["num_elements"])})
@triton.jit
def heuristic_kernel(x_ptr, out_ptr, num_elements, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < num_elements
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)


@triton.jit
def default_kernel(out_ptr, value=3, FACTOR: tl.constexpr = 2):
    tl.store(out_ptr + tl.program_id(2), value * FACTOR + tl.num_programs(2))


@triton.jit
def assembly_kernel(out_ptr):
    value = tl.inline_asm_elementwise("mov.u32 $0, %laneid;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr, value)


@gluon.jit
def gluon_kernel(out_ptr):
    gl.store(out_ptr, 1.0)


@triton.jit
def warps_kernel(out_ptr):
    tl.store(out_ptr, tl.extra.cuda.num_warps())


@triton.jit
def doubled_if_positive(x):
    if x > 0:
        return x * 2
    return x


@triton.jit
def mapped_kernel(x_ptr):
    places = tl.arange(0, 4)
    tl.store(x_ptr + places, tl.map_elementwise(doubled_if_positive, tl.load(x_ptr + places)))


@triton.jit
def wrong_kernel(out_ptr):
    tl.static_assert(False, "never compiles")


def _add(kernel: Any, grid: Any, **constants: Any) -> torch.Tensor:
    x, y = torch.arange(100.0), torch.ones(100)
    out = torch.zeros(100)
    kernel[grid](x, y, out, 100, **constants)
    return out


def _patches() -> list[object]:
    return [JITFunction.__dict__["run"], InterpretedFunction.__dict__["run"], Autotuner.__dict__["run"]]


def test_nothing_stays_patched() -> None:
    before = _patches()
    with simulate():
        assert _patches() != before
    assert _patches() == before
    with pytest.raises(ZeroDivisionError), simulate():
        _ = 1 // 0
    assert _patches() == before


def test_a_grid_may_be_a_tuple_or_a_function_of_the_arguments(kernels: Any) -> None:
    expected = torch.arange(100.0) + 1
    with simulate():
        assert torch.equal(_add(kernels.add_kernel, (4,), BLOCK=32), expected)
        assert torch.equal(
            _add(kernels.add_kernel, lambda meta: (triton.cdiv(meta["num_elements"], meta["BLOCK"]),), BLOCK=8),
            expected,
        )


def test_an_autotuner_takes_a_configuration_without_a_benchmark() -> None:
    with simulate():
        out = _add(tuned_kernel, lambda meta: (triton.cdiv(100, meta["BLOCK"]),))
    assert torch.equal(out, torch.arange(100.0) + 1)
    assert tuned_kernel.best_config.kwargs == {"BLOCK": 16}


def test_heuristics_fill_in_their_values() -> None:
    out = torch.zeros(50)
    with simulate():
        heuristic_kernel[(1,)](torch.arange(50.0), out, 50)
    assert torch.equal(out, torch.arange(50.0) * 2)


def test_defaults_options_and_three_grid_axes() -> None:
    out = torch.zeros(5, dtype=torch.int32)
    with simulate():
        default_kernel[(1, 1, 5)](out, num_warps=8, num_stages=2)
    assert out.tolist() == [11] * 5


def test_an_empty_grid_runs_nothing(kernels: Any) -> None:
    with simulate():
        assert not _add(kernels.add_kernel, (0,), BLOCK=32).any()


def test_the_innermost_session_runs_the_launch(kernels: Any) -> None:
    with simulate() as outer, simulate() as inner:
        kernels.add_kernel[(1,)](torch.zeros(3), torch.zeros(4), torch.zeros(4), 4, BLOCK=4)
    assert not outer.findings
    assert [finding.kind for finding in inner.findings] == [FindingKind.OUT_OF_BOUNDS_LOAD]


def test_views_strides_and_storage_offsets_stay_as_they_are(kernels: Any) -> None:
    storage = torch.arange(200.0)
    out = torch.zeros(300)
    with simulate() as session:
        kernels.add_kernel[(2,)](storage[50:100], storage[150:], out[17:67], 50, BLOCK=32)
    assert not session.findings
    assert torch.equal(out[17:67], storage[50:100] + storage[150:])
    assert out[:17].eq(0).all()
    assert out[67:].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8])
def test_tensors_of_each_type(kernels: Any, dtype: torch.dtype) -> None:
    x = torch.arange(40).to(dtype)
    out = torch.zeros_like(x)
    with simulate():
        kernels.add_kernel[(2,)](x, x, out, 40, BLOCK=32)
    assert torch.equal(out, x + x)


@pytest.mark.parametrize("dtype", [tl.int32, tl.float32, tl.uint32, tl.int16, tl.bfloat16, tl.float8e5, tl.int1])
def test_a_tensor_that_is_reinterpreted_is_read_as_its_other_type(kernels: Any, dtype: Any) -> None:
    names = {tl.int1: "bool", tl.float8e5: "float8_e5m2", tl.bfloat16: "bfloat16", tl.float32: "float32"}
    other = getattr(torch, names.get(dtype, str(dtype)))
    x = torch.zeros(40, dtype=torch.bool) if dtype == tl.int1 else torch.arange(40).to(other)
    bits = x.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()])
    out = torch.ones(40, dtype=torch.float32)
    with simulate():
        kernels.add_kernel[(2,)](triton.reinterpret(bits, dtype), torch.zeros(40), out, 40, BLOCK=32)
    assert torch.equal(out, x.float())


def test_an_unknown_operation_names_itself_and_its_line() -> None:
    with (
        simulate() as session,
        pytest.raises(UnsupportedOperation, match=r"tt\.elementwise_inline_asm .*test_launch\.py:\d+"),
    ):
        assembly_kernel[(1,)](torch.zeros(1, dtype=torch.int32))
    assert [error.operation for error in session.unsupported] == ["tt.elementwise_inline_asm of mov.u32 $0, %laneid"]


def test_a_kernel_that_does_not_compile() -> None:
    with simulate(), pytest.raises(LoweringError, match="never compiles"):
        wrong_kernel[(1,)](torch.zeros(1))


def test_a_missing_argument(kernels: Any) -> None:
    with simulate(), pytest.raises(TypeError, match="misses the argument 'out_ptr'"):
        kernels.add_kernel[(1,)](torch.zeros(1), torch.zeros(1))


def test_a_tensor_that_is_not_on_the_cpu(kernels: Any) -> None:
    x = torch.zeros(4, device="meta")
    with simulate(), pytest.raises(SimulatorError, match="argument 'x_ptr' is on meta"):
        kernels.add_kernel[(1,)](x, x, x, 4, BLOCK=4)


INTERPRETED = """
import sys
from pathlib import Path

import importlib.util
import torch
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator
from triton.runtime.interpreter import InterpretedFunction

specification = importlib.util.spec_from_file_location("sample_kernels", sys.argv[2])
sample_kernels = importlib.util.module_from_spec(specification)
specification.loader.exec_module(sample_kernels)
softmax_kernel = sample_kernels.softmax_kernel
assert isinstance(softmax_kernel, InterpretedFunction)
x = torch.randn(7, 50)
out = torch.empty(7, 50)
with simulate(Simulator(cache_dir=Path(sys.argv[1]))):
    softmax_kernel[(7,)](x, 50, out, 50, 50, BLOCK=64)
torch.testing.assert_close(out, torch.softmax(x, 1))
assert list(Path(sys.argv[1]).iterdir()), "the simulator ran it"
again = torch.empty(7, 50)
softmax_kernel[(7,)](x, 50, again, 50, 50, BLOCK=64)
torch.testing.assert_close(again, out)
print("both ran")
"""


@pytest.mark.slow
def test_kernels_decorated_for_the_interpreter_run_in_both(tmp_path: Path) -> None:
    environment = dict(os.environ, TRITON_INTERPRET="1")
    samples = str(Path(__file__).parents[1] / "kernels" / "sample_kernels.py")
    command = [sys.executable, "-W", "ignore", "-c", INTERPRETED, str(tmp_path), samples]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == "both ran\n", result.stderr


def test_a_launch_keeps_denormal_numbers_whatever_the_cpu_was_told() -> None:
    """A target that sets this, or loads a library built with -ffast-math, changes no GPU either."""
    tiny, out = torch.full((64,), 1e-40), torch.empty(64)
    torch.set_flush_denormal(True)
    try:
        with simulate():
            tuned_kernel[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](tiny, torch.zeros(64), out, 64)
        assert flushes_denormals(), "the target finds what it left"
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(out, torch.full((64,), 1e-40))


def test_a_kernel_in_gluon_is_refused_in_one_line() -> None:
    with simulate() as session, pytest.raises(UnsupportedOperation, match=r"^Gluon, .*test_launch\.py:\d+$"):
        gluon_kernel[(1,)](torch.zeros(1))
    assert len(session.unsupported) == 1


def test_a_kernel_that_computes_with_its_number_of_warps_is_refused() -> None:
    with simulate(), pytest.raises(UnsupportedOperation, match=r"^the number of warps .*test_launch\.py:\d+$"):
        warps_kernel[(1,)](torch.zeros(1, dtype=torch.int32), num_warps=8)


def test_an_operation_with_a_region_is_refused_at_its_line() -> None:
    with simulate(), pytest.raises(UnsupportedOperation, match=r"^tt\.map_elementwise .*test_launch\.py:\d+$"):
        mapped_kernel[(1,)](torch.zeros(4))
