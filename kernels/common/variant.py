"""What is compiled into a kernel: sizes and flags, which a launcher passes as constexprs.

The jit functions hand the tuples on and make no NamedTuple with a flag in it: what they read of a constexpr tuple is a
plain number, and Triton 3.6 takes only tensors and constexprs for the fields of a NamedTuple.
"""

from typing import NamedTuple


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
