"""Kernel arguments that every family computes in the same way."""

from typing import Any

import torch
import triton.language as tl

from .contract import FP8_DTYPES

TRITON_DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
MAX_POSITION = 2**31 - 1

Arguments = dict[str, Any]


def kernel_window(window: int) -> int:
    """Return the window, clipped to int32: no sequence is longer, so the mask is the same."""
    return min(window, MAX_POSITION)


def output_arguments(out: torch.Tensor, output_scale: torch.Tensor | None) -> Arguments:
    """Return the arguments about the output, for the kernel that writes it."""
    return {
        "out_ptr": out,
        "out_stride_token": out.stride(0),
        "out_stride_head": out.stride(1),
        "output_scale_ptr": output_scale,
        "OUTPUT_LIMIT": torch.finfo(out.dtype).max,
        "USE_FP8_OUTPUT": out.dtype in FP8_DTYPES,
    }
