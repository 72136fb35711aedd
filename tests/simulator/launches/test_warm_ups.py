"""What a warm-up and a launch return in place of a compiled kernel."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from fuzz_attn.simulator.session import simulate


@triton.jit
def scaled_kernel(x_ptr, out_ptr, count, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * FACTOR, mask=mask)


tuned_kernel = triton.autotune(
    configs=[triton.Config({"BLOCK": 16}, num_warps=2), triton.Config({"BLOCK": 32})], key=["count"]
)(scaled_kernel)


def test_a_warm_up_runs_nothing_and_tells_plausible_figures() -> None:
    x, out = torch.ones(30), torch.zeros(30)
    with simulate() as session:
        compiled = scaled_kernel.warmup(x, out, 30, FACTOR=3, BLOCK=16, grid=(2,), num_warps=8, num_stages=2)
        compiled._init_handles()
    assert session.launches == 0
    assert not out.any()
    assert 0 < compiled.n_regs <= 255
    assert compiled.n_spills == 0
    assert 0 < compiled.metadata.shared <= 228 * 1024
    assert (compiled.metadata.num_warps, compiled.metadata.num_stages, compiled.metadata.num_ctas) == (8, 2, 1)
    assert (compiled.name, compiled.metadata.name) == ("scaled_kernel", "scaled_kernel")
    assert compiled.metadata.target.warp_size == 32


def test_a_warm_up_takes_types_in_place_of_tensors() -> None:
    with simulate():
        compiled = scaled_kernel.warmup(torch.float32, torch.float32, 30, FACTOR=3, BLOCK=16, grid=(1,))
    assert compiled.metadata.num_warps == 4


@pytest.mark.parametrize("constants", [(), (3, 16)])
def test_what_a_warm_up_returns_can_be_launched(constants: tuple[int, ...]) -> None:
    x, out = torch.ones(30), torch.zeros(30)
    with simulate() as session:
        compiled = scaled_kernel.warmup(x, out, 30, FACTOR=3, BLOCK=16, grid=(1,))
        compiled[(2, 1, 1)](x, out, 30, *constants)
    assert session.launches == 1
    assert torch.equal(out, torch.full((30,), 3.0))


def test_a_launch_returns_the_same() -> None:
    x, out = torch.ones(30), torch.zeros(30)
    with simulate():
        compiled = scaled_kernel[(2,)](x, out, 30, FACTOR=3, BLOCK=16, num_warps=1, launch_pdl=True)
    assert torch.equal(out, torch.full((30,), 3.0))
    assert (compiled.metadata.num_warps, compiled.metadata.launch_pdl) == (1, True)


def test_an_autotuned_kernel_returns_that_of_its_configuration() -> None:
    x, out = torch.ones(30), torch.zeros(30)
    with simulate():
        compiled = tuned_kernel[(2,)](x, out, 30, FACTOR=3)
        warm = tuned_kernel.warmup(x, out, 30, FACTOR=3, grid=(2,))
    assert compiled.metadata.num_warps == 2
    assert [one.metadata.num_warps for one in warm] == [2, 4]
