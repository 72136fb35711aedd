"""Addresses as numbers, scalar flags, and waits for other launches, as published kernels use them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzz_attn.errors import UnsupportedOperation
from fuzz_attn.simulator.session import simulate
from fuzz_attn.simulator.simulator import Simulator

KERNELS = "foreign_kernels.py"


@pytest.mark.parametrize("flag", [True, False])
def test_a_negated_flag(kernels: Any, flag: bool) -> None:
    x, out = torch.arange(16.0), torch.zeros(16)
    with simulate():
        kernels.negated_flag_kernel[(1,)](x, out, flag, BLOCK=16)  # Triton 3.6's interpreter cannot negate a flag
    assert out.tolist() == ([-1.0] * 16 if flag else [*range(13), -1.0, -1.0, -1.0])


def test_a_choice_between_tiles_by_a_number_of_each_program(kernels: Any, interpreter: Any) -> None:
    x, y = torch.arange(256.0), -torch.arange(256.0)
    for programs in (1, 5, 16):
        out = torch.zeros(256)
        with simulate():
            kernels.scalar_choice_kernel[(programs,)](x, y, out, BLOCK=16)
        (*_, interpreted, _), _ = interpreter.launch(
            kernels.__file__, "scalar_choice_kernel", (programs,), x, y, torch.zeros(256), BLOCK=16
        )
        assert torch.equal(out, interpreted)


@pytest.mark.parametrize("name", ["dependent_kernel", "assembled_wait_kernel"])
def test_waits_for_other_launches_change_nothing(kernels: Any, name: str) -> None:
    x, out = torch.arange(16.0), torch.zeros(16)
    with simulate() as session:
        getattr(kernels, name)[(1,)](x, out, BLOCK=16, launch_pdl=True)
    assert torch.equal(out, x + 1)
    assert not session.findings


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
@pytest.mark.parametrize(("start", "stride"), [(0, 64), (1, 21), (8, 3)])
def test_addresses_count_bytes_from_the_real_one(kernels: Any, dtype: torch.dtype, start: int, stride: int) -> None:
    x = torch.zeros(400, dtype=dtype)[start:]
    size = x.element_size()
    out, aligned = torch.zeros(3, 2, 16, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    with simulate() as session:
        kernels.address_kernel[(3,)](x, out, aligned, stride, BLOCK=16)
    steps = torch.arange(2)[:, None] * torch.arange(16) * size
    assert torch.equal(out, steps.expand(3, 2, 16))
    assert aligned.tolist() == [(x.data_ptr() + program * stride * size) % 16 for program in range(3)]
    assert not session.findings


def test_an_address_is_that_of_the_launch(kernels: Any) -> None:
    tensors = [torch.zeros(64) for _ in range(3)]
    with simulate(Simulator()) as session:
        for tensor in tensors:
            out = torch.zeros(1, dtype=torch.int64)
            kernels.first_address_kernel[(1,)](tensor, out)
            assert out.item() == tensor.data_ptr()
    assert session.simulator.lowering.count == 1


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("other_pointer_kernel", r"tt\.load of i32 through a pointer to f32"),
        ("wider_pointer_kernel", r"tt\.bitcast of a pointer to f32 to one to i64"),
        ("address_from_table_kernel", r"tt\.int_to_ptr"),
    ],
)
def test_a_pointer_to_an_unknown_tensor_names_its_line(kernels: Any, name: str, operation: str) -> None:
    first = torch.zeros(1, dtype=torch.int64 if "table" in name else torch.float32)
    with simulate(), pytest.raises(UnsupportedOperation, match=rf"{operation} .*foreign_kernels\.py:\d+"):
        getattr(kernels, name)[(1,)](first, torch.zeros(1))
