"""Kernel arguments that every family computes in the same way."""

from typing import Any

import torch

from .contract import FP8_DTYPES
from .outputs import Output

MAX_POSITION = 2**31 - 1

Arguments = dict[str, Any]


def kernel_window(window: int) -> int:
    """Return the window, clipped to int32: no sequence is longer, so the mask is the same."""
    return min(window, MAX_POSITION)


def output_arguments(out: torch.Tensor, output_scale: torch.Tensor | None) -> Arguments:
    """Return the arguments about the output, for the kernel that writes it."""
    return {
        "out": Output(ptr=out, stride_token=out.stride(0), stride_head=out.stride(1), scale_ptr=output_scale),
        "OUTPUT_LIMIT": torch.finfo(out.dtype).max if out.dtype in FP8_DTYPES else None,
    }
