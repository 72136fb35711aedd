"""A kernel that cannot have the shared memory that it needs is refused, as on a GPU; one that a GPU runs never is."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction

from fuzz_attn.errors import LoweringError
from fuzz_attn.properties.experiment import refusal_by
from fuzz_attn.simulator.session import LIMIT, simulate
from fuzz_attn.ttir.triton_compat import TARGET


@triton.jit
def dot_kernel(x_ptr, y_ptr, out_ptr, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    rows, inner, columns = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * K + inner[None, :])
    y = tl.load(y_ptr + inner[:, None] * N + columns[None, :])
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], tl.dot(x, y))


tuned_kernel = triton.autotune(configs=[triton.Config({"K": 1024}), triton.Config({"K": 512})], key=[])(dot_kernel)


def operands(inner: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = torch.ones(16, inner, dtype=torch.float16), torch.ones(inner, columns, dtype=torch.float16)
    return x, y, torch.zeros(16, columns)


def test_a_tile_larger_than_shared_memory_is_refused() -> None:
    x, y, out = operands(512, 256)
    with simulate(), pytest.raises(LoweringError, match=r"required: at least 262144, hardware limit: 232448") as raised:
        dot_kernel[(1,)](x, y, out, 16, 512, 256)
    assert not out.any(), "no program of it has run"
    refusal = refusal_by(raised.value, str(raised.value), launched=False)
    assert refusal is not None
    assert (refusal.stage, refusal.error) == ("compile", "OutOfResources")
    assert refusal.location.startswith(f"{__file__}:")


def test_a_program_from_the_disk_is_refused_too(tmp_path: Path) -> None:
    from fuzz_attn.simulator.simulator import Simulator  # noqa: PLC0415 - only this test needs it

    for _ in range(2):
        with simulate(Simulator(cache_dir=tmp_path / "programs")), pytest.raises(LoweringError, match="shared memory"):
            dot_kernel[(1,)](*operands(512, 256), 16, 512, 256)


def test_a_tile_that_fits_runs() -> None:
    x, y, out = operands(512, 128)
    with simulate():
        dot_kernel[(1,)](x, y, out, 16, 512, 128)
    assert out.eq(512.0).all()


def test_an_autotuner_goes_on_to_a_configuration_that_fits() -> None:
    x, y, out = operands(512, 128)
    with simulate():
        tuned_kernel[(1,)](x, y, out, M=16, N=128)
    assert out.eq(512.0).all()


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("rows", "inner", "columns"), [(16, 32, 32), (64, 64, 128), (16, 128, 64)])
@pytest.mark.parametrize(("dtype", "size"), [("fp16", 2), ("fp8e4nv", 1), ("fp32", 4)])
def test_the_compiler_takes_at_least_what_is_estimated(
    dtype: str, size: int, rows: int, inner: int, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that is refused here would not run on a GPU: the estimate is never above what the compiler takes."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # else Triton 3.9 warns
    kernel: Any = JITFunction(dot_kernel.fn)
    pointers = {"x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "out_ptr": "*fp32"}
    constants = {"M": rows, "K": inner, "N": columns}
    source = ASTSource(kernel, signature={**pointers, **dict.fromkeys(constants, "constexpr")}, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget(*TARGET))
    assert inner * columns * size <= compiled.metadata.shared <= LIMIT
