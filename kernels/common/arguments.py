"""Kernel arguments that every family computes in the same way, and what is compiled into a kernel.

The jit functions hand the tuples on and make no NamedTuple with a flag in it: what they read of a constexpr tuple is a
plain number, and Triton 3.6 takes only tensors and constexprs for the fields of a NamedTuple.
"""

from typing import Any, NamedTuple

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


class Tiling(NamedTuple):
    """How the tokens and keys of a sequence are divided. All kernels of a launch must share it."""

    BLOCK_Q: int
    """Query tokens of a block."""
    TILE_SIZE: int
    """Keys of a tile."""
    HEAD_SIZE: int
    HEAD_SIZE_PADDED: int
    """The next power of two that a dot product takes."""


class Variant(NamedTuple):
    """What else the kernels that attend are compiled for."""

    BLOCK_M: int
    """Rows of a block, each a query token and a head."""
    NUM_QUERIES_PER_KV: int
    BLOCK_SIZE: int
    """Slots of a page."""
    USE_WINDOW: bool
    USE_SOFTCAP: bool
    USE_ALIBI: bool
    USE_QQ_BIAS: bool
    USE_SINKS: bool
    USE_FP8_Q: bool
    USE_FP8_KV: bool
